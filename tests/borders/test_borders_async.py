"""An asynchronous block that is cancelled: at each of its awaits in turn, and once more while it is undone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import psycopg
import pytest
from borders_support import MODES, Mode, Service
from client_support import Bank
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from tallystick import AsyncClient, errors

Execute = Callable[[str], Awaitable[Any]]

UNUSABLE = (psycopg.Error, asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError, errors.TallystickError)
"""What a connection raises that a cancelled block has left."""

LIMIT = 200
"""More awaits than any block has."""


class CancelledAt:
    """Runs a coroutine in the current task, which is cancelled while it waits for the `first` time, and the `times - 1`
    times after that. `waits` counts how often it has waited."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], first: int, times: int) -> None:
        self._coroutine, self._when = coroutine, range(first, first + times)
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        while True:
            try:
                waiting_for = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration:
                return
            self.waits += 1
            if self.waits in self._when:
                task.cancel()  # takes effect at once: the task is about to wait
            error = None
            try:
                yield waiting_for
            except BaseException as thrown:
                error = thrown


@asynccontextmanager
async def psycopg_connection(bank: Bank, **options: Any) -> AsyncIterator[tuple[Any, Execute]]:
    connection = await psycopg.AsyncConnection.connect(**bank.parameters(), **options)
    try:
        yield connection, connection.execute
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_connection(bank: Bank) -> AsyncIterator[tuple[Any, Execute]]:
    connection = await asyncpg.connect(**bank.asyncpg_parameters())
    try:
        yield connection, connection.execute
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool(bank: Bank) -> AsyncIterator[tuple[Any, Execute]]:
    async with (
        asyncpg.create_pool(**bank.asyncpg_parameters(), min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        yield connection, connection.execute


@asynccontextmanager
async def sqlalchemy_session(bank: Bank, driver: str = "psycopg") -> AsyncIterator[tuple[Any, Execute]]:
    engine = create_async_engine(bank.url(f"postgresql+{driver}"), poolclass=NullPool)
    try:
        async with AsyncSession(engine) as session:
            yield session, lambda sql: session.execute(text(sql))
    finally:
        await engine.dispose()


async def block(ts: AsyncClient, connection: Any, execute: Execute, topic: str, note: str, mode: Mode) -> None:
    insert = f"insert into ledger (note) values ('{note}')"
    async with ts.transaction(connection, **mode) as tx:
        if "prepare" in mode:
            tx.send(topic, note)
            await tx.prepare()
            await execute(insert)
        else:
            await execute(insert)
            tx.send(topic, note)


async def cancel_everywhere(ts: AsyncClient, service: Service, opened: Any, mode: Mode, times: int) -> list[str]:
    """A block for each await that it has, cancelled there; the notes of those that came to their end all the same."""
    done = ["first"]
    async with opened(service.bank) as (connection, execute):
        # What is learned only once, of the broker and of the database, would make of each block another one.
        await block(ts, connection, execute, service.topic, "first", mode)
    for number in range(1, LIMIT):
        note = f"{number:03}"
        async with opened(service.bank) as (connection, execute):
            played = CancelledAt(block(ts, connection, execute, service.topic, note, mode), number, times)
            if await _ends(played):
                done.append(note)
            # The connection goes on to be used. It may be of no use any more, but nothing that was left in it by
            # the cancelled block is committed with the next.
            with contextlib.suppress(*UNUSABLE):
                await block(ts, connection, execute, service.topic, f"{note} next", mode)
                done.append(f"{note} next")
        if played.waits < number:
            return done
    raise AssertionError(f"a block with more than {LIMIT} awaits")


async def _ends(played: CancelledAt) -> bool:
    try:
        await played
    except asyncio.CancelledError:
        return False
    finally:
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
    return True


OPENED = {
    "psycopg": psycopg_connection,
    "autocommit": partial(psycopg_connection, autocommit=True),
    "session": sqlalchemy_session,
    "asyncpg": asyncpg_connection,
    "asyncpg pool": asyncpg_pool,
    "asyncpg session": partial(sqlalchemy_session, driver="asyncpg"),
}
ONCE = [(kind, mode, 1) for kind in ("psycopg", "session", "asyncpg", "asyncpg session") for mode in MODES]
TWICE = [(kind, "late", 2) for kind in OPENED]


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("kind", "mode", "times"), [ONCE[0], *(pytest.param(*one, marks=pytest.mark.full) for one in ONCE[1:] + TWICE)]
)
async def test_a_block_that_is_cancelled_at_any_await_has_its_row_and_its_message_or_neither(
    postgres_service: Service, kind: str, mode: str, times: int
) -> None:
    async with AsyncClient(postgres_service.broker.url, group=postgres_service.group, wait=True) as ts:
        done = await cancel_everywhere(ts, postgres_service, OPENED[kind], MODES[mode], times)
        there = postgres_service.bank.notes()
        await asyncio.to_thread(postgres_service.agrees_on, *there)
    assert set(done) <= set(there)
