"""Blocks and consumers over aiosqlite, aiomysql and asyncmy, plain, from their pools, and under SQLAlchemy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import aiomysql
import aiosqlite
import asyncmy
import pytest
from client_support import Bank, messages_in, values_in
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

import tallystick
from brokers import BrokerProcess
from eventually import eventually_equal
from raw_client import RawClient
from servers import Server
from tallystick.barrier import TransactionLost, TransactionOpen, adapt_sync, mark_committed, run_sync

# name -> whether it is one of those that `make test` runs
DRIVERS = {
    "aiosqlite": True,
    "aiomysql": True,
    "asyncmy": True,
    "aiomysql-pool": False,
    "asyncmy-pool": False,
    "alchemy-aiomysql": False,
    "alchemy-asyncmy": False,
    "alchemy-aiosqlite": False,
}
MODES: list[Literal["check-back", "outbox"]] = ["check-back", "outbox"]


def _param(driver: str) -> Any:
    marks = [] if "sqlite" in driver else [pytest.mark.mariadb]
    return pytest.param(driver, marks=marks if DRIVERS[driver] else [*marks, pytest.mark.full])


every_driver = pytest.mark.parametrize("driver", [_param(driver) for driver in DRIVERS])
plain_drivers = pytest.mark.parametrize("driver", [_param(driver) for driver in ("aiosqlite", "aiomysql", "asyncmy")])


@pytest.fixture
def bank(driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    if "sqlite" in driver:
        return Bank("sqlite", tmp_path / "bank.db")
    server: Server = request.getfixturevalue("mariadb")
    return Bank("mysql", server)


@pytest.fixture
async def ats(broker: BrokerProcess, group: str) -> AsyncIterator[tallystick.AsyncClient]:
    async with tallystick.AsyncClient(broker.url, group=group, wait=True) as client:
        yield client


def connect(bank: Bank, driver: str) -> Awaitable[Any]:
    """As a service would, with the driver's defaults."""
    if driver == "aiosqlite":
        return aiosqlite.connect(bank.path, timeout=10)
    given = bank.parameters()
    if driver == "aiomysql":
        return aiomysql.connect(db=given.pop("database"), **given)  # type: ignore[no-any-return]
    return asyncmy.connect(**given)  # type: ignore[no-any-return]


@asynccontextmanager
async def opened(bank: Bank, driver: str) -> AsyncIterator[tuple[Any, Callable[[str], Awaitable[Any]]]]:
    """A connection, and what runs a statement on it."""
    if driver.startswith("alchemy-"):
        kind = "sqlite+aiosqlite" if "sqlite" in driver else f"mysql+{driver.removeprefix('alchemy-')}"
        engine = create_async_engine(bank.url(kind), poolclass=NullPool)
        async with engine.connect() as alchemy:
            yield alchemy, lambda sql: alchemy.execute(text(sql))
        await engine.dispose()
    elif driver.endswith("-pool"):
        given = bank.parameters()
        module = aiomysql if driver.startswith("aiomysql") else asyncmy
        named = {"db": given.pop("database")} if module is aiomysql else {}
        async with module.create_pool(minsize=1, maxsize=1, **given, **named) as pool, pool.acquire() as connection:
            yield connection, lambda sql: execute(connection, sql)
    else:
        connection = await connect(bank, driver)
        try:
            yield connection, lambda sql: execute(connection, sql)
        finally:
            await (connection.close() if driver == "aiosqlite" else connection.ensure_closed())


async def execute(connection: Any, sql: str) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(sql)


async def note(run: Callable[[str], Awaitable[Any]], text: str) -> None:
    await run(f"insert into ledger (note) values ('{text}')")


async def block(
    ats: tallystick.AsyncClient,
    connection: Any,
    change: Callable[[], Awaitable[Any]],
    topic: str,
    mode: Any,
    then: Callable[[], Awaitable[Any]],
) -> None:
    async with ats.transaction(connection, mode=mode) as tx:
        tx.send(topic, b"never")
        await change()
        await then()


async def fail() -> None:
    raise ZeroDivisionError


@every_driver
@pytest.mark.parametrize("mode", MODES)
async def test_both_or_neither(
    ats: tallystick.AsyncClient, broker: BrokerProcess, bank: Bank, driver: str, topic: str, mode: Any
) -> None:
    async with opened(bank, driver) as (connection, run):
        async with ats.transaction(connection, mode=mode) as tx:
            await note(run, "paid")
            tx.send(topic, b"\x00\xff'%s\\", key="bytes")
        with pytest.raises(ZeroDivisionError):
            await block(ats, connection, lambda: note(run, "not paid"), topic, mode, fail)
        async with ats.transaction(connection, mode=mode) as tx:  # the connection goes on
            await note(run, "paid again")
    assert bank.notes() == ["paid", "paid again"]

    sent = await asyncio.to_thread(messages_in, broker.url, topic)
    assert [message.value for message in sent] == [b"\x00\xff'%s\\"]
    await asyncio.to_thread(eventually_equal, lambda: bank.rows("select gid from tallystick_outbox"), [])


@every_driver
@pytest.mark.parametrize("end", ["commit", "rollback", "sql"])
async def test_a_transaction_that_is_ended_inside_is_noticed(
    ats: tallystick.AsyncClient, broker: BrokerProcess, bank: Bank, driver: str, topic: str, end: str
) -> None:
    async with opened(bank, driver) as (connection, run):
        with pytest.raises(TransactionLost):
            await block(
                *(ats, connection, lambda: note(run, "before"), topic, "check-back"),
                lambda: run("commit") if end == "sql" else getattr(connection, end)(),
            )
    assert bank.notes() == ([] if end == "rollback" else ["before"])
    assert values_in(broker.url, topic) == []


@plain_drivers
async def test_two_tasks_on_one_connection(
    ats: tallystick.AsyncClient, broker: BrokerProcess, bank: Bank, driver: str, topic: str
) -> None:
    """The second is refused before it has touched the connection, on which the first has a statement under way."""
    async with opened(bank, driver) as (connection, run):

        async def second() -> None:
            async with ats.transaction(connection):
                pytest.fail("the block was entered")

        async with ats.transaction(connection) as tx:
            tx.send(topic, 1)
            slow = "select sleep(0.2)" if driver != "aiosqlite" else "select 1"
            under_way = asyncio.create_task(run(slow))
            await asyncio.sleep(0)
            with pytest.raises(TransactionOpen):
                await asyncio.create_task(second())
            await under_way
            await note(run, "first")
    assert (bank.notes(), values_in(broker.url, topic)) == (["first"], [1])


@plain_drivers
@pytest.mark.parametrize("by", ["inbox", "offset"])
async def test_a_consumer_with_connections_of_the_driver(
    broker: BrokerProcess, bank: Bank, driver: str, topic: str, group: str, by: Any
) -> None:
    async with tallystick.AsyncClient(broker.url, group=group, database=lambda: connect(bank, driver)) as ats:

        @ats.subscribe(topic, exactly_once=lambda: connect(bank, driver), by=by)
        async def handle(message: tallystick.Message, connection: Any, tx: Any) -> None:
            await execute(connection, f"insert into ledger (note) values ('{message.text}')")
            tx.send(f"{topic}-out", message.text)

        await ats.send(topic, "a")
        await ats.send(topic, "b")
        await ats.start()
        await asyncio.to_thread(eventually_equal, bank.notes, ["a", "b"])
        await asyncio.to_thread(eventually_equal, lambda: _texts(broker, f"{topic}-out"), ["a", "b"])


def _texts(broker: BrokerProcess, topic: str) -> list[str]:
    return sorted(message.text for message in messages_in(broker.url, topic))


@plain_drivers
def test_a_sync_client_answers_check_backs_over_an_async_driver(
    broker: BrokerProcess, bank: Bank, driver: str, topic: str, group: str
) -> None:
    with tallystick.Client(broker.url, group=group, database=lambda: connect(bank, driver)) as ts:
        ts.start()
        committed, never_begun = ts.new_gid(), ts.new_gid()
        with bank.connection() as connection:
            run_sync(adapt_sync(connection), mark_committed(committed))
            connection.commit()
        for gid in (committed, never_begun):
            ts.prepare(gid, [tallystick.outgoing(topic, gid)])
        with RawClient(broker.url) as raw:
            for gid, state in ((committed, "committed"), (never_begun, "rolled_back")):
                eventually_equal(lambda gid=gid: raw.request("GET", f"/v1/transactions/{gid}").json()["state"], state)
