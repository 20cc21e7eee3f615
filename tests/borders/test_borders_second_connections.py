"""No step of a block waits for a second connection while the first one is in a transaction: none comes here at all.

The first blocks of a process, on every driver and in every mode, while each new connection is accepted and then waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import aiomysql
import asyncmy
import asyncpg
import mysql.connector
import MySQLdb
import peewee
import psycopg
import psycopg2
import psycopg_pool
import pytest
from borders_support import COMMIT, MODES, Service
from client_support import Bank, messages_in
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

import tallystick
from brokers import BrokerProcess
from cutting_proxy import FullProxy, full_proxy, lossy_proxy
from eventually import eventually, eventually_async
from servers import Server
from tallystick import AsyncClient
from tallystick.barrier import WrongDatabase, adapt_sync
from tallystick.barrier.operations.barrier import decide
from tallystick.barrier.runner import run_sync

ALL_MODES: dict[str, dict[str, Any]] = {**MODES, "consumer-dedup": {"mode": "consumer-dedup"}}
SECONDS = 45.0
"""Far more than blocks take, and less than the drivers wait for a connection here."""
PATIENT = 300
"""How long the drivers wait for a connection, in seconds."""

SERVERS = {"postgresql": "postgres", "mysql": "mariadb"}


class Behind(Bank):
    """The bank through a proxy; the tests themselves look at it directly."""

    def __init__(self, engine: str, server: Server, proxy: FullProxy) -> None:
        super().__init__(engine, server)
        self.proxy = proxy
        self.far = dataclasses.replace(server, port=proxy.port)

    def through(self) -> Any:
        return self.far.connect(self._database, connect_timeout=PATIENT)

    def given(self, **options: Any) -> dict[str, Any]:
        return {**self.far.parameters(self._database), **options}


@contextlib.contextmanager
def bank_behind(engine: str, request: pytest.FixtureRequest) -> Iterator[Behind]:
    server = request.getfixturevalue(SERVERS[engine])
    with full_proxy(server.port) as proxy:
        yield Behind(engine, server, proxy)


# Connections on threads


@contextlib.contextmanager
def with_psycopg(bank: Behind) -> Iterator[Any]:
    with contextlib.closing(psycopg.connect(**bank.given(connect_timeout=PATIENT))) as connection:
        yield connection


@contextlib.contextmanager
def with_psycopg_pool(bank: Behind) -> Iterator[Any]:
    given = psycopg.conninfo.make_conninfo(**bank.given(connect_timeout=PATIENT))
    with psycopg_pool.ConnectionPool(given, min_size=1, max_size=1, open=True) as pool, pool.connection() as connection:
        yield connection


@contextlib.contextmanager
def with_psycopg2(bank: Behind) -> Iterator[Any]:
    with contextlib.closing(psycopg2.connect(**bank.given(connect_timeout=PATIENT))) as connection:
        yield connection


@contextlib.contextmanager
def with_sqlalchemy(bank: Behind) -> Iterator[Any]:
    driver = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}[bank.engine]
    url, patient = bank.far.url(driver, bank._database), {"connect_timeout": PATIENT}
    engine = create_engine(url, pool_size=1, max_overflow=0, connect_args=patient)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextlib.contextmanager
def with_pymysql(bank: Behind) -> Iterator[Any]:
    with contextlib.closing(bank.through()) as connection:
        yield connection


@contextlib.contextmanager
def with_mysqlclient(bank: Behind) -> Iterator[Any]:
    with contextlib.closing(MySQLdb.connect(**bank.given(connect_timeout=PATIENT))) as connection:
        yield connection


@contextlib.contextmanager
def with_connector(bank: Behind) -> Iterator[Any]:
    given = bank.given(connection_timeout=PATIENT, use_pure=True)
    with contextlib.closing(mysql.connector.connect(**given)) as connection:
        yield connection


@contextlib.contextmanager
def with_peewee(bank: Behind) -> Iterator[Any]:
    given = bank.given(connect_timeout=PATIENT)
    database = peewee.MySQLDatabase(given.pop("database"), **given)
    with contextlib.closing(database):
        database.connect()
        yield database


def note(connection: Any, text: str) -> None:
    sql = f"insert into ledger (note) values ('{text}')"
    for method in ("exec_driver_sql", "execute_sql"):
        if hasattr(connection, method):
            getattr(connection, method)(sql)
            return
    connection.cursor().execute(sql)


Way = Callable[[Behind], AbstractContextManager[Any]]

POSTGRES = [with_psycopg, with_psycopg2, with_psycopg_pool, with_sqlalchemy]
MARIADB = [with_pymysql, with_mysqlclient, with_connector, with_sqlalchemy, with_peewee]
NEEDS_DATABASE = (with_mysqlclient, with_connector)  # their connections do not tell the password


def cases() -> Iterator[Any]:
    """The fast suite has every driver once, and the first one in every mode."""
    servers = {"postgresql": POSTGRES, "mysql": MARIADB}
    for engine, mark in (("postgresql", pytest.mark.postgresql), ("mysql", pytest.mark.mariadb)):
        for way, mode, given, identity in itertools.product(servers[engine], ALL_MODES, (False, True), (True, False)):
            needs = way in NEEDS_DATABASE
            if needs and not given:
                continue
            first = way in (with_psycopg, with_pymysql) and (mode == "late" or (way is with_psycopg and identity))
            fast = given is needs and (first or (mode == "late" and identity))
            name = f"{engine}-{way.__name__}-{mode}{'-database' if given else ''}{'' if identity else '-no_identity'}"
            marks = [mark] if fast else [mark, pytest.mark.full]
            yield pytest.param(engine, way, mode, given, identity, marks=marks, id=name)


@pytest.mark.parametrize(("engine", "way", "mode", "given", "identity"), list(cases()))
def test_a_first_block_ends_while_no_second_connection_comes(
    request: pytest.FixtureRequest,
    broker: BrokerProcess,
    topic: str,
    group: str,
    engine: str,
    way: Way,
    mode: str,
    given: bool,
    identity: bool,
) -> None:
    with bank_behind(engine, request) as bank, contextlib.ExitStack() as stack:
        if not identity:
            bank.run("delete from tallystick_barrier")
        database = bank.through if given else None
        service = stack.enter_context(contextlib.closing(Service(broker, bank, topic, group, database=database)))

        def block() -> None:
            with way(bank) as connection:
                bank.proxy.full = True
                with service.ts.transaction(connection, **ALL_MODES[mode]) as tx:
                    tx.send(topic, "there")
                    if mode == "early":
                        tx.prepare()
                    note(connection, "there")

        ended = _in_thread(block)
        assert ended.wait(SECONDS), "the block waits for a second connection"
        assert bank.notes() == ["there"]
        bank.proxy.make_room()
        assert eventually(lambda: not service.ts._core.databases._unverified, "it is verified once one comes")
        assert service.ts._core.databases._by_source
        assert bank.rows("select reason from tallystick_barrier where op = 'identity'")
        if mode != "consumer-dedup":
            service.agrees_on("there")


def _in_thread(work: Callable[[], None]) -> threading.Event:
    """Set once the work has ended without an error."""
    ended = threading.Event()

    def run() -> None:
        work()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    return ended


# Connections on an event loop


@contextlib.asynccontextmanager
async def with_async_psycopg(bank: Behind) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(**bank.given(connect_timeout=PATIENT)) as connection:
        yield connection


@contextlib.asynccontextmanager
async def with_asyncpg_pool(bank: Behind) -> AsyncIterator[Any]:
    given = bank.far.asyncpg_parameters(bank._database)
    async with (
        asyncpg.create_pool(**given, min_size=1, max_size=1, timeout=PATIENT) as pool,
        pool.acquire() as connection,
    ):
        yield connection


@contextlib.asynccontextmanager
async def with_async_sqlalchemy(bank: Behind) -> AsyncIterator[Any]:
    driver = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+aiomysql"}[bank.engine]
    engine = create_async_engine(bank.far.url(driver, bank._database), pool_size=1, max_overflow=0)
    async with engine.connect() as connection:
        yield connection
    await engine.dispose()


@contextlib.asynccontextmanager
async def with_aiomysql(bank: Behind) -> AsyncIterator[Any]:
    given = bank.given()
    connection = await aiomysql.connect(db=given.pop("database"), **given)
    yield connection
    await connection.ensure_closed()


@contextlib.asynccontextmanager
async def with_asyncmy(bank: Behind) -> AsyncIterator[Any]:
    connection = await asyncmy.connect(**bank.given(connect_timeout=PATIENT))
    yield connection
    await connection.ensure_closed()


async def note_async(connection: Any, text: str) -> None:
    sql = f"insert into ledger (note) values ('{text}')"
    run = getattr(connection, "exec_driver_sql", None) or getattr(connection, "execute", None)
    if run is not None:
        await run(sql)
        return
    async with connection.cursor() as cursor:
        await cursor.execute(sql)


AsyncWay = Callable[[Behind], AbstractAsyncContextManager[Any]]


def async_cases() -> Iterator[Any]:
    for engine, mark, ways in (
        ("postgresql", pytest.mark.postgresql, [with_asyncpg_pool, with_async_psycopg, with_async_sqlalchemy]),
        ("mysql", pytest.mark.mariadb, [with_aiomysql, with_asyncmy, with_async_sqlalchemy]),
    ):
        for way in ways:
            for mode in ALL_MODES:
                marks = [mark] if mode == "outbox" and way is ways[0] else [mark, pytest.mark.full]
                yield pytest.param(engine, way, mode, marks=marks, id=f"{engine}-{way.__name__}-{mode}")


@pytest.mark.parametrize("identity", [True, pytest.param(False, marks=pytest.mark.full)], ids=["identity", "none"])
@pytest.mark.parametrize(("engine", "way", "mode"), list(async_cases()))
async def test_a_first_block_on_an_event_loop_ends_while_no_second_connection_comes(
    request: pytest.FixtureRequest,
    broker: BrokerProcess,
    topic: str,
    group: str,
    engine: str,
    way: AsyncWay,
    mode: str,
    identity: bool,
) -> None:
    with bank_behind(engine, request) as bank:
        if not identity:
            bank.run("delete from tallystick_barrier")
        async with AsyncClient(broker.url, group=group, wait=True) as ts, way(bank) as connection:
            bank.proxy.full = True
            async with asyncio.timeout(SECONDS):
                async with ts.transaction(connection, **ALL_MODES[mode]) as tx:
                    tx.send(topic, "there")
                    if mode == "early":
                        await tx.prepare()
                    await note_async(connection, "there")
            assert bank.notes() == ["there"]
            bank.proxy.make_room()

            async def verified() -> bool:
                return not ts._core.databases._unverified

            await eventually_async(verified, "the way is verified once a connection comes")
            assert ts._core.databases._by_source
        assert bank.rows("select reason from tallystick_barrier where op = 'identity'")
    if mode != "consumer-dedup":
        eventually(lambda: [one.text for one in messages_in(broker.url, topic)] == ["there"], "the message")


# What is verified beside the blocks


@pytest.mark.postgresql
def test_many_blocks_make_one_attempt_and_one_line_in_the_log(
    request: pytest.FixtureRequest,
    broker: BrokerProcess,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A pool that is always full takes one connection attempt of a process, and one of its threads."""
    monkeypatch.setattr("tallystick.client.base.learning.ATTEMPT_SECONDS", 0.2)
    caplog.set_level(logging.WARNING, "tallystick.client")
    with (
        bank_behind("postgresql", request) as bank,
        contextlib.closing(Service(broker, bank, topic, group, database=None)) as service,
        ThreadPoolExecutor(4) as threads,
        contextlib.ExitStack() as stack,
    ):
        connections = [stack.enter_context(with_psycopg(bank)) for _ in range(4)]
        bank.proxy.full = True

        def blocks(connection: Any) -> None:
            for _ in range(10):
                service.block(connection, "there")

        for one in [threads.submit(blocks, connection) for connection in connections]:
            one.result(SECONDS)
        eventually(lambda: service.ts.stats.ways_failed >= 5, "it is tried again")
        assert len(bank.proxy.waiting) == 1, "attempts that hang are not piled up"
        lines = [record.message for record in caplog.records if "could not be verified" in record.message]
        assert len(lines) == 1, lines
        bank.proxy.make_room()
        service.agrees_on(*["there"] * 40)


@pytest.mark.postgresql
def test_a_block_that_fails_leaves_its_outcome_to_the_check_back_while_no_second_connection_comes(
    request: pytest.FixtureRequest, broker: BrokerProcess, topic: str, group: str
) -> None:
    """After an early mark the barrier decides, over a second connection. It is waited for with a limit."""
    with (
        bank_behind("postgresql", request) as bank,
        contextlib.closing(Service(broker, bank, topic, group, database=None)) as service,
    ):

        def block() -> None:
            with with_psycopg(bank) as connection:
                bank.proxy.full = True
                with contextlib.suppress(ZeroDivisionError), service.ts.transaction(connection, prepare="early") as tx:
                    tx.send(topic, "never")
                    tx.prepare()
                    raise ZeroDivisionError

        assert _in_thread(block).wait(SECONDS)
        bank.proxy.make_room()
        service.agrees_on()


@pytest.mark.parametrize(
    "engine",
    [pytest.param("postgresql", marks=pytest.mark.postgresql), pytest.param("mysql", marks=pytest.mark.mariadb)],
)
def test_what_was_prepared_before_the_table_had_an_identity_is_answered(
    request: pytest.FixtureRequest, broker: BrokerProcess, topic: str, group: str, engine: str
) -> None:
    """Its producer has never had a second connection, and is gone. Another process answers from this table only."""
    with bank_behind(engine, request) as bank, lossy_proxy(broker.port) as network:
        bank.run("delete from tallystick_barrier")
        network.refusing = COMMIT
        killed = tallystick.Client(network.url, group=group, commit_wait=0.01, timeout=0.5, wait=True)
        with contextlib.closing(bank.through()) as connection:
            bank.proxy.full = True
            with killed.transaction(connection) as tx:
                bank.note(connection, "there")
                tx.send(topic, "there")
        (source,) = killed._core.databases._by_source
        assert "/at-" in source
        killed.close(timeout=0.01)
        other = Bank(engine, request.getfixturevalue(SERVERS[engine]))
        other.run("delete from tallystick_barrier")
        with other.connection() as elsewhere, pytest.raises(WrongDatabase):
            run_sync(adapt_sync(elsewhere), decide(tx.gid, source=source))
        assert other.rows("select gid from tallystick_barrier") == []
        bank.proxy.make_room()
        with contextlib.closing(Service(broker, bank, topic, group, database=bank.through)) as service:
            service.agrees_on("there")
