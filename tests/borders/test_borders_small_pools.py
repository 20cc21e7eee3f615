"""The first blocks of a process behind a pooler that has as many connections as there are blocks, and none to spare.

While a block's transaction is open, no step of it may wait for a second connection: that comes only when a first one is
given back, and those are all held by blocks that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import asyncpg
import psycopg
import psycopg2
import psycopg2.pool
import psycopg_pool
import pytest
from borders_support import Service
from client_support import Bank
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from brokers import BrokerProcess
from eventually import eventually
from servers import Server, pgbouncer
from tallystick import AsyncClient

pytestmark = pytest.mark.postgresql

SIZE = 3
SECONDS = 45.0
"""All blocks have ended by then: they take far below a second, and for ever if one waits for a second connection."""

MODES: dict[str, dict[str, Any]] = {
    "late": {},
    "early": {"prepare": "early"},
    "outbox": {"mode": "outbox"},
    "consumer-dedup": {"mode": "consumer-dedup"},
}
UNPREPARED: dict[str, Any] = {"prepare_threshold": None}

Opener = Callable[[], AbstractContextManager[Any]]
AsyncOpener = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.fixture(scope="module")
def pooler(postgres: Server) -> Iterator[Server]:
    """It keeps those who wait for two minutes, as PgBouncer does by default."""
    # Each test has its own database, and with it its own pool: the server has no room for those of all of them.
    with pgbouncer(postgres, "transaction", default_pool_size=str(SIZE), server_idle_timeout="1") as pooler:
        yield pooler


@pytest.fixture
def bank(postgres: Server, identity: bool) -> Bank:
    bank = Bank("postgresql", postgres)
    if not identity:  # as where others have made the table
        bank.run("delete from tallystick_barrier")
    return bank


def cases(ways: Sequence[Any]) -> list[Any]:
    """Drivers, modes, with and without `database=`, tables with and without an identity. The fast suite has those of
    the first driver that differ in one of them."""
    found = []
    for way, mode, given, identity in itertools.product(ways, MODES, (False, True), (True, False)):
        different = (way is not ways[0]) * 2 + (mode != "late") + given + (not identity)
        name = f"{way.__name__}-{mode}{'-database' if given else ''}{'' if identity else '-no_identity'}"
        found.append(
            pytest.param(way, mode, given, identity, marks=[pytest.mark.full] if different > 1 else [], id=name)
        )
    return found


CASES = ("way", "mode", "given", "identity")


def settled(service: Service, rows: list[str]) -> None:
    """Rows and messages agree, the way into the database is verified, and the table has its identity."""
    assert service.bank.notes() == rows
    eventually(service.settled, "every transaction has its outcome")
    eventually(lambda: not service.ts._core.databases._unverified, "the way is verified, beside the blocks")
    eventually(lambda: service.bank.rows("select reason from tallystick_barrier where op = 'identity'"), "an identity")


# On threads


@contextlib.contextmanager
def plain(pooler: Server, database: str) -> Iterator[Opener]:
    yield lambda: contextlib.closing(pooler.connect(database, **UNPREPARED))


@contextlib.contextmanager
def with_psycopg2(pooler: Server, database: str) -> Iterator[Opener]:
    yield lambda: contextlib.closing(psycopg2.connect(**pooler.parameters(database)))


@contextlib.contextmanager
def with_psycopg2_pool(pooler: Server, database: str) -> Iterator[Opener]:
    pool = psycopg2.pool.ThreadedConnectionPool(SIZE, SIZE, **pooler.parameters(database))

    @contextlib.contextmanager
    def take() -> Iterator[Any]:
        connection = pool.getconn()
        try:
            yield connection
        finally:
            pool.putconn(connection)

    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(pool.closeall)
        yield take


@contextlib.contextmanager
def with_psycopg_pool(pooler: Server, database: str) -> Iterator[Opener]:
    given = psycopg.conninfo.make_conninfo(**pooler.parameters(database))
    with psycopg_pool.ConnectionPool(given, kwargs=UNPREPARED, min_size=SIZE, max_size=SIZE, open=True) as pool:
        yield pool.connection


@contextlib.contextmanager
def with_sqlalchemy(pooler: Server, database: str) -> Iterator[Opener]:
    url = pooler.url("postgresql+psycopg", database)
    engine = create_engine(url, pool_size=SIZE, max_overflow=0, connect_args=UNPREPARED)
    yield engine.connect
    engine.dispose()


WAYS = [plain, with_psycopg2, with_psycopg2_pool, with_psycopg_pool, with_sqlalchemy]


def note(connection: Any, text: str) -> None:
    sql = f"insert into ledger (note) values ('{text}')"
    if hasattr(connection, "exec_driver_sql"):
        connection.exec_driver_sql(sql)
    else:
        connection.cursor().execute(sql)


@pytest.mark.parametrize(CASES, cases(WAYS))
def test_as_many_first_blocks_as_the_pool_has_connections(
    broker: BrokerProcess, pooler: Server, bank: Bank, topic: str, group: str, way: Any, mode: str, given: bool
) -> None:
    database = bank._database
    opened = (lambda: pooler.connect(database, **UNPREPARED)) if given else None
    all_inside = threading.Barrier(SIZE)
    early = mode == "early"
    with (
        contextlib.closing(Service(broker, bank, topic, group, database=opened)) as service,
        way(pooler, database) as take,
    ):

        def block(text: str) -> None:
            with take() as connection, service.ts.transaction(connection, **MODES[mode]) as tx:
                if early:  # its transaction begins with it
                    tx.send(topic, text)
                    tx.prepare()
                note(connection, text)
                all_inside.wait(SECONDS)  # every connection of the pooler is in a transaction now
                if not early:
                    tx.send(topic, text)

        texts = [str(number) for number in range(SIZE)]
        with ThreadPoolExecutor(SIZE) as threads:
            blocks = [threads.submit(block, text) for text in texts]
            _ended(blocks)
        settled(service, texts)
        if mode != "consumer-dedup":
            service.agrees_on(*texts)


def _ended(blocks: list[Future[None]]) -> None:
    for one in blocks:
        one.result(SECONDS)


# On an event loop


@contextlib.asynccontextmanager
async def with_asyncpg_pool(pooler: Server, database: str) -> AsyncIterator[AsyncOpener]:
    given = pooler.asyncpg_parameters(database)
    async with asyncpg.create_pool(**given, min_size=SIZE, max_size=SIZE, statement_cache_size=0) as pool:
        yield pool.acquire


@contextlib.asynccontextmanager
async def with_async_psycopg_pool(pooler: Server, database: str) -> AsyncIterator[AsyncOpener]:
    given = psycopg.conninfo.make_conninfo(**pooler.parameters(database))
    sizes = {"min_size": SIZE, "max_size": SIZE}
    async with psycopg_pool.AsyncConnectionPool(given, kwargs=UNPREPARED, open=False, **sizes) as pool:
        yield pool.connection


@contextlib.asynccontextmanager
async def with_async_sqlalchemy(pooler: Server, database: str) -> AsyncIterator[AsyncOpener]:
    url = pooler.url("postgresql+psycopg", database)
    engine = create_async_engine(url, pool_size=SIZE, max_overflow=0, connect_args=UNPREPARED)
    yield engine.connect
    await engine.dispose()


ASYNC_WAYS = [with_asyncpg_pool, with_async_psycopg_pool, with_async_sqlalchemy]


@pytest.mark.parametrize(CASES, cases(ASYNC_WAYS))
async def test_as_many_first_blocks_on_an_event_loop(
    broker: BrokerProcess, pooler: Server, bank: Bank, topic: str, group: str, way: Any, mode: str, given: bool
) -> None:
    database = bank._database
    all_inside = asyncio.Barrier(SIZE)
    early = mode == "early"
    async with way(pooler, database) as take:
        # The service's own pool: `pool.acquire`, `pool.getconn`, `engine.connect`.
        opened = getattr(getattr(take, "__self__", None), "getconn", take) if given else None
        async with AsyncClient(broker.url, group=group, wait=True, database=opened) as ts:

            async def block(text: str) -> None:
                async with take() as connection, ts.transaction(connection, **MODES[mode]) as tx:
                    if early:
                        tx.send(topic, text)
                        await tx.prepare()
                    run = getattr(connection, "exec_driver_sql", connection.execute)
                    await run(f"insert into ledger (note) values ('{text}')")
                    await all_inside.wait()
                    if not early:
                        tx.send(topic, text)

            texts = [str(number) for number in range(SIZE)]
            async with asyncio.timeout(SECONDS):
                await asyncio.gather(*map(block, texts))
            unverified = ts._core.databases._unverified
            async with asyncio.timeout(SECONDS):
                while unverified:
                    await asyncio.sleep(0.02)
    assert bank.notes() == texts
