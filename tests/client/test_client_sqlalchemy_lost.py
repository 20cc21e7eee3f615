"""A session or connection of SQLAlchemy's that loses its commit: it goes on as after `with session.begin()`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import sqlmodel
from client_support import Bank, values_in
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import tallystick
from brokers import BrokerProcess
from cutting_proxy import Cut, CuttingProxy, cutting_proxy
from eventually import eventually_async, eventually_equal
from tallystick import errors
from tallystick.client.transactions import outbox

KINDS = [
    pytest.param("postgresql+psycopg", marks=pytest.mark.postgresql),
    pytest.param("mysql+pymysql", marks=pytest.mark.mariadb),
    pytest.param("postgresql+psycopg2", marks=[pytest.mark.postgresql, pytest.mark.full]),
    pytest.param("mysql+mysqldb", marks=[pytest.mark.mariadb, pytest.mark.full]),
    pytest.param("mysql+mysqlconnector", marks=[pytest.mark.mariadb, pytest.mark.full]),
]
ASYNC_KINDS = [
    pytest.param("postgresql+asyncpg", marks=pytest.mark.postgresql),
    pytest.param("postgresql+psycopg", marks=[pytest.mark.postgresql, pytest.mark.full]),
    pytest.param("mysql+aiomysql", marks=[pytest.mark.mariadb, pytest.mark.full]),
    pytest.param("mysql+asyncmy", marks=[pytest.mark.mariadb, pytest.mark.full]),
]
MODES: list[dict[str, Any]] = [{}, {"prepare": "early"}, {"mode": "outbox"}]
CUTS: list[Cut] = ["before", "after"]
COMMIT = re.compile(rb"commit;?\0?", re.IGNORECASE)
INSERT = "insert into ledger (note) values ('{:03}')"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outbox rows of a commit whose answer was lost are looked for at once."""
    monkeypatch.setattr(outbox, "LEFT_BEHIND_SECONDS", 0.3)
    monkeypatch.setattr(outbox, "REDRIVE_SECONDS", 0.2)


@pytest.fixture
def bank(kind: str, request: pytest.FixtureRequest) -> Bank:
    engine, server = ("postgresql", "postgres") if kind.startswith("postgresql") else ("mysql", "mariadb")
    return Bank(engine, request.getfixturevalue(server))


@pytest.fixture
def proxy(bank: Bank) -> Iterator[CuttingProxy]:
    with cutting_proxy(bank.parameters()["port"]) as proxy:
        yield proxy


@pytest.fixture
def engine(kind: str, bank: Bank, proxy: CuttingProxy) -> Iterator[Engine]:
    made = create_engine(bank.url(kind).set(port=proxy.port))
    yield made
    made.dispose()


def cut_commit(proxy: CuttingProxy, cut: Cut) -> None:
    proxy._choose = lambda piece: cut if COMMIT.fullmatch(piece[5:]) else "no"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [Session, sqlmodel.Session, Engine.connect], ids=["session", "sqlmodel", "core"])
def test_the_next_block_of_a_session_whose_commit_was_lost(
    broker: BrokerProcess, bank: Bank, proxy: CuttingProxy, engine: Engine, topic: str, group: str, make: Any
) -> None:
    number, known = 0, []
    with (
        tallystick.Client(broker.url, group=group, wait=True, database=bank.open) as ts,
        make(engine) as session,
    ):

        def pay(number: int, options: dict[str, Any]) -> None:
            with ts.transaction(session, **options) as tx:
                tx.send(topic, number)
                if "prepare" in options:
                    tx.prepare()
                session.execute(text(INSERT.format(number)))

        for options in MODES:
            for cut in CUTS:
                number += 2
                cut_commit(proxy, cut)
                with pytest.raises(errors.OutcomeUnknown):
                    pay(number, options)
                proxy.calm()
                pay(number + 1, options)
                known += [f"{number:03}"] * (cut == "after") + [f"{number + 1:03}"]
        eventually_equal(bank.notes, known)
        eventually_equal(lambda: values_in(broker.url, topic), [int(note) for note in known])


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_the_next_block_of_an_async_session_whose_commit_was_lost(
    broker: BrokerProcess, kind: str, bank: Bank, proxy: CuttingProxy, topic: str, group: str
) -> None:
    engine = create_async_engine(bank.url(kind).set(port=proxy.port))
    async with (
        tallystick.AsyncClient(broker.url, group=group, wait=True, database=bank.open) as ts,
        AsyncSession(engine) as session,
    ):

        async def pay(number: int) -> None:
            async with ts.transaction(session) as tx:
                tx.send(topic, number)
                await session.execute(text(INSERT.format(number)))

        cut_commit(proxy, "before")
        with pytest.raises(errors.OutcomeUnknown):
            await pay(1)
        proxy.calm()
        await pay(2)

        async def both() -> bool:
            return bank.notes() == ["002"] and values_in(broker.url, topic) == [2]

        await eventually_async(both)
    await engine.dispose()
