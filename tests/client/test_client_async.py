"""AsyncClient: asynchronous drivers, synchronous ones on the loop, and cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from client_support import Bank, messages_in, values_in
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from servers import Server
from tallystick import AsyncClient, errors, outgoing

Execute = Callable[[str], Awaitable[Any]]


class AsyncKind:
    """An asynchronous driver over a bank."""

    def __init__(self, name: str, bank: Bank) -> None:
        self.name, self.bank = name, bank

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[Any, Execute]]:
        """A connection of this kind, and how to run a statement on it."""
        if self.name == "psycopg":
            async with await psycopg.AsyncConnection.connect(**self.bank.parameters()) as connection:
                yield connection, connection.execute
            return
        driver = "sqlite+aiosqlite" if self.bank.engine == "sqlite" else "postgresql+psycopg"
        engine = create_async_engine(self.bank.url(driver), poolclass=NullPool)
        try:
            owner: Any = AsyncSession(engine) if self.name == "orm" else engine.connect()
            async with owner as used:
                yield used, lambda sql: used.execute(text(sql))
        finally:
            await engine.dispose()


@pytest.fixture(
    params=[
        "core-sqlite",
        "orm-sqlite",
        pytest.param("psycopg-postgresql", marks=pytest.mark.postgresql),
        pytest.param("core-postgresql", marks=pytest.mark.postgresql),
        pytest.param("orm-postgresql", marks=pytest.mark.postgresql),
    ]
)
def kind(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncKind:
    name, engine = str(request.param).split("-")
    place = tmp_path / "bank.db" if engine == "sqlite" else request.getfixturevalue("postgres")
    return AsyncKind(name, Bank(engine, place))


NOTE = "insert into ledger (note) values ('paid')"


@pytest.mark.parametrize("mode", ["check-back", "outbox"])
async def test_both_or_neither_with_asynchronous_drivers(
    broker: BrokerProcess, kind: AsyncKind, topic: str, group: str, mode: Any
) -> None:
    async with AsyncClient(broker.url, group=group, wait=True) as ts, kind.connection() as (connection, execute):
        async with ts.transaction(connection, mode=mode) as tx:
            await execute(NOTE)
            tx.send(topic, 1)
        assert kind.bank.notes() == ["paid"]
        with pytest.raises(ValueError, match="no money"):
            await _fail(ts, connection, execute, topic, mode)
    assert kind.bank.notes() == ["paid"]
    assert values_in(broker.url, topic) == [1]


async def _fail(ts: AsyncClient, connection: Any, execute: Execute, topic: str, mode: Any) -> None:
    async with ts.transaction(connection, mode=mode) as tx:
        await execute(NOTE)
        tx.send(topic, 2)
        raise ValueError("no money")


async def test_a_lost_commit_is_answered_over_an_asynchronous_driver(
    broker: BrokerProcess, kind: AsyncKind, topic: str, group: str
) -> None:
    with lossy_proxy(broker.port) as proxy:
        async with (
            AsyncClient(proxy.url, group=group, commit_wait=0.1, timeout=0.5, wait=True) as ts,
            kind.connection() as (connection, execute),
        ):
            proxy.refusing = b"\xa6commit"
            async with ts.transaction(connection) as tx:
                await execute(NOTE)
                tx.send(topic, 1)
            for _ in range(200):
                with contextlib.suppress(errors.BrokerUnavailable):  # each lost commit may open the circuit again
                    if await ts.outcome(tx.gid) == "committed":
                        break
                await asyncio.sleep(0.05)
    assert values_in(broker.url, topic) == [1]
    assert kind.bank.notes() == ["paid"]


async def test_early_prepare(broker: BrokerProcess, kind: AsyncKind, topic: str, group: str) -> None:
    async with (
        AsyncClient(broker.url, group=group, wait=True) as ts,
        kind.connection() as (connection, execute),
        ts.transaction(connection, prepare="early") as tx,
    ):
        tx.send(topic, 1)
        await tx.prepare()
        assert (await ts.transaction_state(tx.gid)).state == "prepared"
        await execute(NOTE)
    assert kind.bank.notes() == ["paid"]
    assert values_in(broker.url, topic) == [1]


async def test_many_tasks_with_synchronous_connections_do_not_block_each_other_for_ever(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    async with AsyncClient(broker.url, group=group, wait=True) as ts:

        async def block(number: int) -> None:
            connection = sqlite3.connect(bank.path, timeout=0)
            try:
                async with ts.transaction(connection) as tx:
                    bank.note(connection, f"{number:02}")
                    await asyncio.sleep(0.005)
                    tx.send(topic, number)
            finally:
                connection.close()

        await asyncio.gather(*(block(number) for number in range(20)))
    assert bank.notes() == [f"{number:02}" for number in range(20)]
    assert values_in(broker.url, topic) == list(range(20))


@pytest.mark.postgresql
async def test_many_tasks_with_asynchronous_connections_run_together(
    broker: BrokerProcess, postgres: Server, topic: str, group: str
) -> None:
    bank = Bank("postgresql", postgres)
    async with AsyncClient(broker.url, group=group, wait=True) as ts:

        async def block(number: int) -> None:
            async with await psycopg.AsyncConnection.connect(**bank.parameters()) as connection:
                for turn in range(5):
                    async with ts.transaction(connection) as tx:
                        await connection.execute("insert into ledger (note) values (%s)", (f"{number}/{turn}",))
                        tx.send(topic, [number, turn])

        await asyncio.gather(*(block(number) for number in range(10)))
    assert len(bank.notes()) == 50
    assert values_in(broker.url, topic) == [[number, turn] for number in range(10) for turn in range(5)]


async def test_a_cancelled_block_is_rolled_back(broker: BrokerProcess, kind: AsyncKind, topic: str, group: str) -> None:
    async with AsyncClient(broker.url, group=group, wait=True) as ts, kind.connection() as (connection, execute):
        inside = asyncio.Event()

        async def block() -> None:
            async with ts.transaction(connection) as tx:
                await execute(NOTE)
                tx.send(topic, 1)
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.ensure_future(block())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with ts.transaction(connection):
            await execute("insert into ledger (note) values ('next')")
    assert kind.bank.notes() == ["next"]
    assert messages_in(broker.url, topic) == []


async def test_a_client_follows_its_program_to_a_new_event_loop(broker: BrokerProcess, topic: str) -> None:
    ts = AsyncClient(broker.url)

    async def use() -> None:
        await ts.send(topic, 1)
        await ts._core.runtime().close(1)  # what is left open on a loop that ends would be its program's mistake

    await asyncio.to_thread(asyncio.run, use())
    await ts.send(topic, 2)
    await ts.close()
    assert values_in(broker.url, topic) == [1, 2]


async def test_an_asynchronous_connection_is_refused_by_the_synchronous_client(
    broker: BrokerProcess, kind: AsyncKind
) -> None:
    from tallystick import Client

    async with kind.connection() as (connection, _):
        with (
            Client(broker.url, group="g", wait=True) as ts,
            pytest.raises(errors.TallystickError, match="async connection"),
        ):
            ts.transaction(connection)


async def test_blocks_and_plain_operations_share_requests(broker: BrokerProcess, topic: str, bank: Bank) -> None:
    async with AsyncClient(broker.url, group="g", wait=True) as ts:
        await asyncio.gather(*(ts.send(topic, number) for number in range(100)))
        gid = ts.new_gid()
        await asyncio.gather(ts.prepare(gid, [outgoing(topic, 100)]), ts.send(topic, 101))
        await asyncio.gather(ts.commit(gid), ts.send(topic, 102))
    assert values_in(broker.url, topic) == list(range(103))
