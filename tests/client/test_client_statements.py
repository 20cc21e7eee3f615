"""What a block sends to the service's database, for each driver: a new statement or round trip is noticed here."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pymysql
import pytest
from client_support import Bank
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from brokers import BrokerProcess
from tallystick import AsyncClient, Client

MARK, PUT = "insert into tallystick_barrier", "insert into tallystick_outbox"
CHANGE = "insert into ledger"
TIE, UNTIE = "savepoint tallystick_block", "release savepoint tallystick_block"
BEGIN_TIED = "begin; set local tallystick.block"
WHEREABOUTS = "select (select reason from tallystick_barrier"
FILE = "pragma database_list"


class Expected(NamedTuple):
    """The requests to the database, in order, of the same change without Tallystick and in a block."""

    alone: list[str]
    block: list[str]


SQLITE = Expected(
    ["begin", CHANGE, "commit"],
    ["begin immediate", TIE, CHANGE, FILE, UNTIE, MARK, "commit"],
)
# SQLAlchemy's adapter looks for the file when it begins.
SQLITE_BY_SQLALCHEMY = Expected(
    ["begin", CHANGE, "commit"],
    ["begin immediate", FILE, TIE, CHANGE, UNTIE, MARK, "commit"],
)
# One more than alone.
POSTGRESQL = Expected(["begin", CHANGE, "commit"], [BEGIN_TIED, CHANGE, MARK, "commit"])
# An insert tells nothing there, and a savepoint is all that goes with its transaction.
MYSQL = Expected([CHANGE, "commit"], [TIE, CHANGE, UNTIE, WHEREABOUTS, MARK, "commit"])
MYSQL_AUTOCOMMIT = Expected(["begin", CHANGE, "commit"], ["begin", *MYSQL.block])

EXPECTED = {
    "sqlite3": SQLITE,
    "core-sqlite": SQLITE_BY_SQLALCHEMY,
    "psycopg": POSTGRESQL,
    "psycopg-autocommit": POSTGRESQL,
    "async-psycopg": POSTGRESQL,
    "core-psycopg": POSTGRESQL,
    "orm-psycopg": POSTGRESQL,
    "async-orm-psycopg": POSTGRESQL,
    "pymysql": MYSQL,
    "pymysql-autocommit": MYSQL_AUTOCOMMIT,
    "core-pymysql": MYSQL,
}


def kinds(*, asynchronous: bool) -> list[Any]:
    marks = {"psycopg": pytest.mark.postgresql, "pymysql": pytest.mark.mariadb, "sqlite": ()}
    wanted = [kind for kind in EXPECTED if kind.startswith("async-") is asynchronous]
    return [pytest.param(kind, marks=next(marks[name] for name in marks if name in kind)) for kind in wanted]


_TRACED = re.compile(r'F\t\d+\t(?:Query\t|Parse\t "[^"]*") "([^"]*)"')


def in_short(sql: str) -> str:
    """The beginning of a statement, by which it is known."""
    known = (MARK, PUT, CHANGE, BEGIN_TIED, WHEREABOUTS)
    plain = sql.lower().strip()
    return next((one for one in known if plain.startswith(one)), plain)


@contextmanager
def traced(raw: Any) -> Iterator[list[str]]:
    """What a driver sends over its connection, as it is on its way to the server."""
    sent: list[str] = []
    if isinstance(raw, psycopg.Connection | psycopg.AsyncConnection):
        with tempfile.TemporaryFile("w+") as written:
            raw.pgconn.trace(written.fileno())
            raw.pgconn.set_trace_flags(psycopg.pq.Trace.SUPPRESS_TIMESTAMPS)
            yield sent
            raw.pgconn.untrace()
            written.seek(0)
            lines = written.read().splitlines()
        sent += [in_short(found[1]) for found in map(_TRACED.match, lines) if found]
        # One answer that ends a request for each: none of them was sent in two.
        assert sum("ReadyForQuery" in line for line in lines) == len(sent), lines
    elif isinstance(raw, pymysql.Connection):
        send = raw._execute_command
        raw._execute_command = lambda kind, sql: (sent.append(in_short(_as_text(sql))), send(kind, sql))
        yield sent
        raw._execute_command = send
    else:
        raw.set_trace_callback(lambda sql: sent.append(in_short(sql)))
        yield sent
        raw.set_trace_callback(None)


def _as_text(sql: str | bytes) -> str:
    return sql if isinstance(sql, str) else sql.decode()


@pytest.fixture
def bank_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Bank]:
    def make(kind: str) -> Bank:
        if "psycopg" in kind:
            return Bank("postgresql", request.getfixturevalue("postgres"))
        if "pymysql" in kind:
            return Bank("mysql", request.getfixturevalue("mariadb"))
        return Bank("sqlite", tmp_path / "bank.db")

    return make


def add(change: str) -> str:
    return f"{CHANGE} (note) values ('{change}')"


def switch_to_autocommit(connection: Any) -> None:
    if isinstance(connection, psycopg.Connection):
        connection.autocommit = True
    else:
        connection.autocommit(True)


@contextmanager
def opened(kind: str, bank: Bank) -> Iterator[tuple[Any, Any, Callable[[str], Any]]]:
    """A connection of a kind, the driver's own inside it, and how to run a statement on it."""
    if not kind.startswith(("core-", "orm-")):
        with bank.connection() as connection:
            if "autocommit" in kind:
                switch_to_autocommit(connection)
            yield connection, connection, lambda sql: connection.cursor().execute(sql)
        return
    driver = {"core-sqlite": "sqlite", "core-pymysql": "mysql+pymysql"}.get(kind, "postgresql+psycopg")
    engine = create_engine(bank.url(driver))
    with Session(engine) if kind.startswith("orm-") else engine.connect() as owner:
        connection = owner.connection() if isinstance(owner, Session) else owner
        raw = connection.connection.driver_connection
        owner.rollback()
        yield owner, raw, lambda sql: owner.execute(text(sql))
    engine.dispose()


@asynccontextmanager
async def opened_async(kind: str, bank: Bank) -> AsyncIterator[tuple[Any, Any, Callable[[str], Any]]]:
    if kind == "async-psycopg":
        async with await psycopg.AsyncConnection.connect(**bank.parameters()) as connection:
            yield connection, connection, connection.execute
        return
    engine = create_async_engine(bank.url("postgresql+psycopg"))
    async with AsyncSession(engine) as session:
        raw = (await (await session.connection()).get_raw_connection()).driver_connection
        await session.rollback()
        yield session, raw, lambda sql: session.execute(text(sql))
    await engine.dispose()


def expected_in(mode: str, kind: str) -> Expected:
    """In the outbox, the file is looked for behind the row."""
    alone, block = EXPECTED[kind]
    if mode == "outbox":
        block = [PUT if one == MARK else one for one in block]
        if kind == "sqlite3":
            block = [one for one in block if one != FILE]
            block.insert(-1, FILE)
    return Expected(alone, block)


@pytest.mark.parametrize("mode", ["check-back", "outbox"])
@pytest.mark.parametrize("kind", kinds(asynchronous=False))
def test_a_block_sends_no_more_than_it_needs(
    broker: BrokerProcess, bank_of: Callable[[str], Bank], topic: str, group: str, kind: str, mode: Any
) -> None:
    with Client(broker.url, group=group) as ts, opened(kind, bank_of(kind)) as (owner, raw, execute):

        def block(change: str) -> None:
            with ts.transaction(owner, mode=mode) as tx:
                execute(add(change))
                tx.send(topic, change)

        block("the first, which learns where it is")
        with traced(raw) as alone:
            if "autocommit" in kind:
                execute("begin")
            execute(add("without a message"))
            owner.commit()
        with traced(raw) as sent:
            block("with one")
    assert Expected(alone, sent) == expected_in(mode, kind)


@pytest.mark.parametrize("mode", ["check-back", "outbox"])
@pytest.mark.parametrize("kind", kinds(asynchronous=True))
async def test_an_asynchronous_block_sends_no_more_than_it_needs(
    broker: BrokerProcess, bank_of: Callable[[str], Bank], topic: str, group: str, kind: str, mode: Any
) -> None:
    async with AsyncClient(broker.url, group=group) as ts, opened_async(kind, bank_of(kind)) as (owner, raw, execute):

        async def block(change: str) -> None:
            async with ts.transaction(owner, mode=mode) as tx:
                await execute(add(change))
                tx.send(topic, change)

        await block("the first, which learns where it is")
        with traced(raw) as alone:
            await execute(add("without a message"))
            await owner.commit()
        with traced(raw) as sent:
            await block("with one")
    assert Expected(alone, sent) == expected_in(mode, kind)
