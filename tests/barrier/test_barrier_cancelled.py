"""A task that is cancelled inside a statement of Tallystick leaves no lock in SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from eventually import eventually
from tallystick.barrier.adapters.recognition import adapt_async
from tallystick.barrier.statement import Statement

TICKS = 12
"""More steps of the event loop than a statement takes to reach the driver's thread."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with contextlib.closing(sqlite3.connect(tmp_path / "bank.db")) as connection:
        connection.execute("create table ledger (note text)")
        connection.executemany("insert into ledger values (?)", [("1",), ("2",), ("3",)])
        connection.commit()
    return tmp_path / "bank.db"


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """A collection of garbage would close what was left open."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()  # here, where the warnings of what SQLAlchemy leaves open after a cancelled connect are expected


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("place", ["begin", "execute"])
@pytest.mark.parametrize("cancelled", [1, 2])
async def test_a_cancelled_statement_leaves_no_lock(path: Path, place: str, cancelled: int) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    kept: list[BaseException] = []

    async def work() -> None:
        session = AsyncSession(engine)
        adapter = adapt_async(session)
        try:
            if place == "execute":
                await adapter.begin()
                begun.set()
            else:
                begun.set()
                await adapter.begin()
            await adapter.execute(Statement("select note from ledger"))
        except BaseException as failure:
            kept.append(failure)
            await adapter.rollback()
            raise
        finally:
            await session.close()

    for ticks in range(TICKS):
        begun = asyncio.Event()
        task = asyncio.create_task(work())
        await begun.wait()
        for _ in range(ticks):
            await asyncio.sleep(0)
        for _ in range(cancelled):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(eventually, lambda: _is_free(path), f"the lock is free, {ticks} steps", 20)
        kept.clear()
    await engine.dispose()


def _is_free(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path, timeout=0)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
    return True
