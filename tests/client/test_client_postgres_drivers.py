"""psycopg2, asyncpg and the pools of every PostgreSQL driver, as the ways in that a client is given."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import psycopg2
import psycopg2.extras
import psycopg2.pool
import psycopg_pool
import pytest
from client_support import Bank, values_in
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

import tallystick
from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from eventually import eventually
from servers import Server, postgres_tls_server
from tallystick.barrier import UnsupportedConnection, adapt_sync, decide, run_sync

pytestmark = pytest.mark.postgresql

COMMIT = b"\xa6commit"


@pytest.fixture
def bank(postgres: Server) -> Bank:
    return Bank("postgresql", postgres)


@contextlib.contextmanager
def psycopg2_pool(bank: Bank, most: int) -> Iterator[Any]:
    pool = psycopg2.pool.ThreadedConnectionPool(0, most, **bank.parameters())
    yield pool
    pool.closeall()


@contextlib.contextmanager
def psycopg_pool_of(bank: Bank, most: int) -> Iterator[Any]:
    with psycopg_pool.ConnectionPool(kwargs=bank.parameters(), min_size=1, max_size=most, open=True) as pool:
        yield pool


POOLS = {"psycopg2": psycopg2_pool, "psycopg_pool": psycopg_pool_of}


@pytest.mark.full
@pytest.mark.parametrize("kind", POOLS)
def test_blocks_on_connections_of_a_pool(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, kind: str
) -> None:
    with POOLS[kind](bank, 1) as pool:
        for number in range(3):
            connection = pool.getconn()
            with ts.transaction(connection) as tx:
                bank.note(connection, f"{number}")
                tx.send(topic, number)
            pool.putconn(connection)
    assert (bank.notes(), values_in(broker.url, topic)) == (["0", "1", "2"], [0, 1, 2])


@pytest.mark.full
@pytest.mark.parametrize("way", ["psycopg2.connect", *POOLS])
def test_a_consumer_has_each_effect_once_and_leaves_nothing_of_a_pool_behind(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, way: str
) -> None:
    with contextlib.ExitStack() as stack:
        pool = None if way not in POOLS else stack.enter_context(POOLS[way](bank, 1))
        opens = (lambda: psycopg2.connect(**bank.parameters())) if pool is None else pool.getconn
        with tallystick.Client(broker.url, group=group) as ts:
            for number in range(5):
                ts.send(topic, number)
            failed: list[int] = []

            @ts.subscribe(topic, exactly_once=opens, concurrency=1)
            def handle(message: tallystick.Message, connection: Any) -> None:
                bank.note(connection, message.text)
                if not failed:
                    failed.append(1)
                    connection.cursor().execute("select pg_terminate_backend(pg_backend_pid())")

            ts.start()
            eventually(lambda: bank.notes() == ["0", "1", "2", "3", "4"], "each effect")
        if pool is not None:
            pool.putconn(pool.getconn())  # the one connection of the pool is free again


@pytest.mark.parametrize("way", [pytest.param("connect", marks=pytest.mark.full), "pool"])
async def test_an_async_consumer_over_asyncpg(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, way: str
) -> None:
    async with asyncpg.create_pool(**bank.asyncpg_parameters(), min_size=1, max_size=1) as pool:
        opens = pool.acquire if way == "pool" else lambda: asyncpg.connect(**bank.asyncpg_parameters())
        async with tallystick.AsyncClient(broker.url, group=group, wait=True) as ts:

            @ts.subscribe(topic, exactly_once=opens, concurrency=1)
            async def handle(message: tallystick.Message, connection: Any, tx: Any) -> None:
                await connection.execute("insert into ledger (note) values ($1)", message.text)
                tx.send(f"{topic}-next", message.text)

            await ts.start()
            for number in range(5):
                await ts.send(topic, number)
            await asyncio.to_thread(eventually, lambda: bank.notes() == ["0", "1", "2", "3", "4"])
        async with asyncio.timeout(60), pool.acquire() as connection:  # given back when the client was closed
            assert await connection.fetchval("select count(*) from ledger") == 5
    assert sorted(values_in(broker.url, f"{topic}-next")) == [0, 1, 2, 3, 4]


@contextlib.asynccontextmanager
async def given(bank: Bank, way: str) -> AsyncIterator[Any]:
    """A way into the database through a pool of one connection, which the service does not give back."""
    async with contextlib.AsyncExitStack() as stack:
        if way == "asyncpg":
            pool = await stack.enter_async_context(
                asyncpg.create_pool(**bank.asyncpg_parameters(), max_size=1, min_size=1)
            )
            await stack.enter_async_context(pool.acquire())
            yield pool.acquire
        elif way == "async psycopg_pool":
            made = psycopg_pool.AsyncConnectionPool(kwargs=bank.parameters, min_size=1, max_size=1, open=False)
            pool = await stack.enter_async_context(made)
            await stack.enter_async_context(pool.connection())
            yield pool.getconn
        else:
            pool = stack.enter_context(POOLS[way](bank, 1))
            held = pool.getconn()
            yield pool.getconn
            pool.putconn(held)


@pytest.mark.parametrize(
    "way", [*(pytest.param(way, marks=pytest.mark.full) for way in (*POOLS, "async psycopg_pool")), "asyncpg"]
)
async def test_check_backs_do_not_wait_for_the_services_own_pool(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, way: str
) -> None:
    with lossy_proxy(broker.port) as proxy:
        proxy.refusing = COMMIT
        killed = tallystick.Client(proxy.url, group=group, commit_wait=0.01, timeout=0.5, wait=True)
        with bank.connection() as connection, killed.transaction(connection) as tx:
            bank.note(connection, "committed")
            tx.send(topic, 1)
        killed.close(timeout=0.01)
    async with given(bank, way) as opens, tallystick.AsyncClient(broker.url, group=group, database=opens) as ts:
        await ts.start()
        await asyncio.to_thread(eventually, lambda: values_in(broker.url, topic) == [1], "the check-back's answer")


def test_whatever_cursors_a_connection_of_psycopg2_makes(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str
) -> None:
    factory = psycopg2.extras.RealDictCursor
    with contextlib.closing(psycopg2.connect(**bank.parameters(), cursor_factory=factory)) as connection:
        with ts.transaction(connection) as tx, connection.cursor("a_named_one") as cursor:
            cursor.execute("select * from generate_series(1, 5000)")
            assert len(cursor.fetchmany(10)) == 10
            bank.note(connection, "paid")
            tx.send(topic, 1)
        assert run_sync(adapt_sync(connection), decide(tx.gid)) == "committed"
    assert (bank.notes(), values_in(broker.url, topic)) == (["paid"], [1])


def test_psycopg2s_asynchronous_mode_is_refused(ts: tallystick.Client, bank: Bank) -> None:
    connection = psycopg2.connect(**bank.parameters(), async_=1)
    psycopg2.extras.wait_select(connection)
    with pytest.raises(UnsupportedConnection, match="asynchronous mode"), ts.transaction(connection):
        pytest.fail("the block was entered")
    connection.close()


def test_a_two_phase_transaction_of_psycopg2_is_undone_with_its_block(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str
) -> None:
    """psycopg2 does not tell that it is in one until it is asked to commit."""

    def block(number: int) -> None:
        with ts.transaction(connection) as tx:
            bank.note(connection, f"{number}")
            tx.send(topic, number)

    with contextlib.closing(psycopg2.connect(**bank.parameters())) as connection:
        connection.tpc_begin(connection.xid(1, "gtrid", "bqual"))
        with pytest.raises(psycopg2.ProgrammingError, match="two-phase"):
            block(1)
        block(2)
    assert (bank.notes(), values_in(broker.url, topic)) == (["2"], [2])


def test_every_driver_spells_the_address_of_a_server_alike(bank: Bank, postgres: Server) -> None:
    async def of_asyncpg(**where: Any) -> str:
        connection = await asyncpg.connect(**where)
        try:
            return tallystick.barrier.adapt(connection).address
        finally:
            await connection.close()

    socket = str(postgres.directory)
    for host in ("127.0.0.1", "localhost", socket):
        found = {asyncio.run(of_asyncpg(**{**bank.asyncpg_parameters(), "host": host}))}
        for driver in (psycopg2, __import__("psycopg")):
            with contextlib.closing(driver.connect(**{**bank.parameters(), "host": host})) as connection:
                found.add(adapt_sync(connection).address)
        assert len(found) == 1, found


@pytest.mark.full
async def test_a_second_connection_is_opened_as_the_first_one_was(bank: Bank, postgres: Server) -> None:
    asked: list[str] = []

    async def password() -> str:
        asked.append("asked")
        return postgres.password

    given = {**bank.asyncpg_parameters(), "password": password, "host": ["127.0.0.1", "localhost"]}
    settings = {"search_path": "elsewhere", "application_name": "shop"}
    connection = await asyncpg.connect(**given, server_settings=settings, statement_cache_size=0, command_timeout=7)
    opener: Any = tallystick.barrier.adapt_async(connection).opener()
    second = await opener()
    assert await second.fetchrow("select current_setting('search_path'), current_setting('application_name')") == (
        "elsewhere",
        "shop",
    )
    assert (asked, second._config) == (["asked", "asked"], connection._config)
    for one in (connection, second):
        await one.close()


@pytest.mark.full
async def test_a_second_connection_is_encrypted_if_and_only_if_the_first_one_is() -> None:
    encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()"
    with postgres_tls_server() as (server, certificate):
        where = {**server.asyncpg_parameters(), "host": "localhost"}
        checked = ssl.create_default_context(cafile=certificate)
        for way, expected in (
            ("disable", False),
            ("allow", False),
            ("prefer", True),
            ("require", True),
            (checked, True),
        ):
            connection = await asyncpg.connect(**where, ssl=way)
            opener: Any = tallystick.barrier.adapt_async(connection).opener()
            second = await opener()
            assert [await one.fetchval(encrypted) for one in (connection, second)] == [expected] * 2
            for one in (connection, second):
                await one.close()


@pytest.mark.full
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_an_async_connection_of_sqlalchemy_whose_session_was_lost_is_made_anew_by_the_next_block(
    broker: BrokerProcess, bank: Bank, postgres: Server, topic: str, group: str, driver: str
) -> None:
    given = bank.parameters()
    engine = create_async_engine(postgres.url(f"postgresql+{driver}", given["dbname"]))
    async with engine.connect() as connection, tallystick.AsyncClient(broker.url, group=group, wait=True) as ts:
        with pytest.raises(DBAPIError):
            await _lose_the_session(ts, connection, postgres)
        await connection.rollback()
        async with ts.transaction(connection) as tx:
            await connection.execute(text("insert into ledger (note) values ('after')"))
            tx.send(topic, 1)
    await engine.dispose()
    assert (bank.notes(), values_in(broker.url, topic)) == (["after"], [1])


async def _lose_the_session(ts: tallystick.AsyncClient, connection: Any, server: Server) -> None:
    async with ts.transaction(connection):
        number = (await connection.execute(text("select pg_backend_pid()"))).scalar_one()
        server.execute(f"select pg_terminate_backend({number})")
        await connection.execute(text("select 1"))
