"""The service's own pools, given to the client as openers: every connection that it takes comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiomysql
import asyncmy
import asyncpg
import mysql.connector.pooling
import psycopg2.pool
import psycopg_pool
import pytest
from client_support import Bank, values_in

import tallystick
from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from eventually import eventually, eventually_async
from servers import Server
from tallystick import AsyncClient
from tallystick.barrier.adapters.pools import arrival
from tallystick.barrier.adapters.recognition import adapt_async
from tallystick.client import handlers
from tallystick.client.transactions import outbox

COMMIT = b"\xa6commit"
LOOKS = 6
SECONDS = 60.0


class Pool:
    """A pool of any driver: its opener, its counters and what ends a server connection."""

    def __init__(self, opener: Callable[[], Any], size: int, in_use: Callable[[], int]) -> None:
        self.opener, self.size, self.in_use = opener, size, in_use
        self.owner: Any = getattr(opener, "__self__", None)

    async def all_free(self) -> None:
        async def none_is_in_use() -> bool:
            return self.in_use() == 0

        await eventually_async(none_is_in_use, "every connection is back in its pool", SECONDS)


@contextlib.asynccontextmanager
async def _aio(module: Any, bank: Bank, size: int) -> AsyncIterator[Pool]:
    given = bank.parameters()
    named = {"db": given.pop("database")} if module is aiomysql else {}
    async with module.create_pool(minsize=1, maxsize=size, **given, **named) as pool:
        yield Pool(pool.acquire, size, lambda: pool.size - pool.freesize)


@contextlib.asynccontextmanager
async def _asyncpg(bank: Bank, size: int) -> AsyncIterator[Pool]:
    async with asyncpg.create_pool(**bank.asyncpg_parameters(), min_size=1, max_size=size) as pool:
        yield Pool(pool.acquire, size, lambda: pool.get_size() - pool.get_idle_size())


@contextlib.asynccontextmanager
async def _psycopg_async(bank: Bank, size: int) -> AsyncIterator[Pool]:
    sizes = {"min_size": 1, "max_size": size, "timeout": SECONDS}
    async with psycopg_pool.AsyncConnectionPool(kwargs=bank.parameters(), open=False, **sizes) as pool:
        yield Pool(pool.getconn, size, lambda: _busy(pool))


@contextlib.asynccontextmanager
async def _psycopg(bank: Bank, size: int) -> AsyncIterator[Pool]:
    sizes = {"min_size": 1, "max_size": size, "timeout": SECONDS}
    with psycopg_pool.ConnectionPool(kwargs=bank.parameters(), open=True, **sizes) as pool:
        yield Pool(pool.getconn, size, lambda: _busy(pool))


def _busy(pool: Any) -> int:
    stats = pool.get_stats()
    return int(stats["pool_size"] - stats["pool_available"])


@contextlib.asynccontextmanager
async def _psycopg2(bank: Bank, size: int) -> AsyncIterator[Pool]:
    pool = psycopg2.pool.ThreadedConnectionPool(1, size, **bank.parameters())
    yield Pool(pool.getconn, size, lambda: len(pool._used))
    pool.closeall()


@contextlib.asynccontextmanager
async def _mysql_connector(bank: Bank, size: int) -> AsyncIterator[Pool]:
    name = f"pool-{bank._database}"
    pool = mysql.connector.pooling.MySQLConnectionPool(pool_name=name, pool_size=size, **bank.parameters())
    yield Pool(pool.get_connection, size, lambda: size - pool._cnx_queue.qsize())
    pool._remove_connections()


KINDS: dict[str, Callable[[Bank, int], contextlib.AbstractAsyncContextManager[Pool]]] = {
    "aiomysql": lambda bank, size: _aio(aiomysql, bank, size),
    "asyncmy": lambda bank, size: _aio(asyncmy, bank, size),
    "mysql.connector": _mysql_connector,
    "asyncpg": _asyncpg,
    "async psycopg_pool": _psycopg_async,
    "psycopg_pool": _psycopg,
    "psycopg2": _psycopg2,
}
MYSQL = ("aiomysql", "asyncmy", "mysql.connector")
TRACKED_BY_AWAITABLE = ("aiomysql", "asyncmy")


def _param(kind: str, *more: Any, fast: bool) -> Any:
    marks = [pytest.mark.mariadb if kind in MYSQL else pytest.mark.postgresql]
    return pytest.param(kind, *more, marks=marks if fast else [*marks, pytest.mark.full])


kinds_and_sizes = pytest.mark.parametrize(
    ("kind", "size"),
    [_param(kind, size, fast=kind in TRACKED_BY_AWAITABLE and size == 1) for kind in KINDS for size in (1, 3)],
)
tracked_by_awaitable = pytest.mark.parametrize("kind", [_param(kind, fast=True) for kind in TRACKED_BY_AWAITABLE])


@pytest.fixture
def bank(kind: str, request: pytest.FixtureRequest) -> Bank:
    engine, server = ("mysql", "mariadb") if kind in MYSQL else ("postgresql", "postgres")
    return Bank(engine, request.getfixturevalue(server))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has the re-driver look often, and counts its looks that ended well."""
    counted: list[int] = []
    claim = outbox.Outbox._drive_once

    async def counting(self: outbox.Outbox, door: Any) -> bool:
        more = await claim(self, door)
        counted.append(1)
        return more

    monkeypatch.setattr(outbox, "REDRIVE_SECONDS", 0.05)
    monkeypatch.setattr(outbox.Outbox, "_drive_once", counting)
    return counted


def leave_a_question(broker: BrokerProcess, bank: Bank, group: str, topic: str) -> None:
    """A transaction that is committed in the database only, by a process that has ended."""
    with lossy_proxy(broker.port) as proxy:
        proxy.refusing = COMMIT
        killed = tallystick.Client(proxy.url, group=group, commit_wait=0.01, timeout=0.5, wait=True)
        with bank.connection() as connection, killed.transaction(connection) as tx:
            bank.note(connection, "committed")
            tx.send(topic, 1)
        killed.close(timeout=0.01)


@kinds_and_sizes
@pytest.mark.parametrize("form", ["method", "lambda"])
async def test_an_idle_client_that_answers_a_check_back_takes_nothing_from_a_pool_for_good(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, looks: list[int], kind: str, size: int, form: str
) -> None:
    if kind == "psycopg2" and form == "lambda":
        pytest.skip("its connections do not know their pool: give pool.getconn itself")
    leave_a_question(broker, bank, group, topic)

    async def enough() -> bool:
        return len(looks) >= LOOKS

    async with KINDS[kind](bank, size) as pool:
        opener = pool.opener if form == "method" else lambda: pool.opener()
        async with AsyncClient(broker.url, group=group, database=opener) as ts:
            await ts.start()
            await asyncio.to_thread(eventually, lambda: values_in(broker.url, topic) == [1], "the answer")
            await eventually_async(enough, "looks at the outbox", SECONDS)
        await pool.all_free()


@kinds_and_sizes
async def test_a_consumer_whose_connections_are_cut_leaves_every_place_of_the_pool_free(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, kind: str, size: int
) -> None:
    cut = "kill connection_id()" if kind in MYSQL else "select pg_terminate_backend(pg_backend_pid())"
    failures = [lambda: _raise(ZeroDivisionError), None]  # the second one cuts its connection

    async with KINDS[kind](bank, size) as pool:
        for start in ("first", "second"):
            left = [*failures]
            texts = [f"{start}-{number}" for number in range(4)]
            async with AsyncClient(broker.url, group=group, wait=True) as ts:

                async def act(message: tallystick.Message, run: Callable[[str], Any], left: list[Any] = left) -> None:
                    for sql in [f"insert into ledger (note) values ('{message.text}')", *([cut] if left else [])]:
                        if sql == cut and (failure := left.pop()) is not None:
                            failure()
                        done = run(sql)
                        if isinstance(done, Awaitable):
                            await done

                _subscribe(ts, topic, kind, pool, act)
                await ts.start()
                for text in texts:
                    await ts.send(topic, text)
                handled = set(texts)
                await asyncio.to_thread(eventually, lambda handled=handled: handled <= set(bank.notes()), "each effect")
            await pool.all_free()
    assert len(bank.notes()) == 8


def _raise(kind: type[Exception]) -> None:
    raise kind


def _subscribe(ts: AsyncClient, topic: str, kind: str, pool: Pool, act: Any) -> None:
    if kind in ("aiomysql", "asyncmy"):

        @ts.subscribe(topic, exactly_once=pool.opener, concurrency=pool.size)
        async def handle(message: tallystick.Message, connection: Any) -> None:
            async with connection.cursor() as cursor:
                await act(message, cursor.execute)

    elif kind in ("asyncpg", "async psycopg_pool"):

        @ts.subscribe(topic, exactly_once=pool.opener, concurrency=pool.size)
        async def handle_plainly(message: tallystick.Message, connection: Any) -> None:
            await act(message, connection.execute)

    else:

        @ts.subscribe(topic, exactly_once=pool.opener, concurrency=pool.size)
        def handle_on_a_thread(message: tallystick.Message, connection: Any) -> None:
            asyncio.run(act(message, connection.cursor().execute))


@tracked_by_awaitable
async def test_a_consumer_that_is_closed_inside_a_statement_leaves_its_place_free(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, kind: str
) -> None:
    under_way = asyncio.Event()
    async with KINDS[kind](bank, 1) as pool:
        ts = AsyncClient(broker.url, group=group, wait=True)

        @ts.subscribe(topic, exactly_once=pool.opener, concurrency=1)
        async def handle(message: tallystick.Message, connection: Any) -> None:
            async with connection.cursor() as cursor:
                await cursor.execute("insert into ledger (note) values ('undone')")
                under_way.set()
                await cursor.execute("select sleep(100)")

        await ts.start()
        await ts.send(topic, 1)
        async with asyncio.timeout(SECONDS):
            await under_way.wait()
            await ts.close(timeout=0.1)
            await pool.owner.release(await pool.opener())
    assert bank.notes() == []


@kinds_and_sizes
async def test_a_check_back_handler_takes_nothing_from_a_pool_for_good(bank: Bank, kind: str, size: int) -> None:
    async with KINDS[kind](bank, size) as pool:
        for opener in [pool.opener, *([lambda: pool.opener()] if kind != "psycopg2" else [])]:
            app = handlers.asgi(opener)
            statuses = [await _asked(app, f"g-{number}") for number in range(size + 2)]
            assert statuses == [409] * (size + 2)
            await pool.all_free()


async def _asked(app: Any, gid: str) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": f"gid={gid}".encode(), "headers": []}
    async with asyncio.timeout(SECONDS):
        await app(scope, None, send)
    return int(sent[0]["status"])


@tracked_by_awaitable
async def test_a_connection_goes_back_without_the_transaction_that_is_open_in_it(bank: Bank, kind: str) -> None:
    async with KINDS[kind](bank, 1) as pool:
        connection = await arrival(pool.opener())
        adapter = adapt_async(connection)
        await adapter.begin()
        async with connection.cursor() as cursor:
            await cursor.execute("insert into ledger (note) values ('undone')")
        await adapter.close()
        assert pool.in_use() == 0
        assert await arrival(pool.opener()) is connection, "it was rolled back, and not closed"
        await adapt_async(connection).close()
    assert bank.notes() == []


@tracked_by_awaitable
async def test_a_waiter_gets_the_place_of_a_connection_that_the_server_has_ended(
    bank: Bank, mariadb: Server, kind: str
) -> None:
    async with KINDS[kind](bank, 1) as pool:
        connection = await arrival(pool.opener())
        mariadb.execute(f"kill {connection.thread_id()}")
        waiting = asyncio.ensure_future(pool.opener())
        await asyncio.sleep(0)
        assert not waiting.done()
        await adapt_async(connection).close()
        async with asyncio.timeout(SECONDS):
            other = await waiting
        assert other is not connection
        await pool.owner.release(other)


@tracked_by_awaitable
async def test_what_the_handler_gave_back_itself_is_left_alone(bank: Bank, kind: str) -> None:
    async with KINDS[kind](bank, 1) as pool:
        adapter = adapt_async(connection := await arrival(pool.opener()))
        await pool.owner.release(connection)
        await adapter.close()
        async with pool.owner.acquire() as again, again.cursor() as cursor:
            assert again is connection
            await cursor.execute("select 1")


@tracked_by_awaitable
async def test_a_pool_that_the_service_has_ended_takes_its_connections_back(bank: Bank, kind: str) -> None:
    async with KINDS[kind](bank, 1) as pool:
        adapter = adapt_async(await arrival(pool.opener()))
        pool.owner.terminate()
        await adapter.close()
        assert pool.in_use() == 0
