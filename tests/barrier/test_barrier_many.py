"""Deciding many at once: as right as one by one, and with few round trips."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from parties import Place, plain_kinds

from tallystick.barrier import SyncAdapter, adapt_sync, decide_many, mark_committed, run_sync
from tallystick.barrier.statement import Result, Statement

MANY = 1_100  # more than fit into one statement

pytestmark = plain_kinds


@pytest.fixture
def gids(gid: str) -> list[str]:
    return [f"{gid}-{number}" for number in range(MANY)]


async def test_what_has_no_row_is_rolled_back_and_what_has_one_is_told(place: Place, gids: list[str]) -> None:
    committed = set(gids[::7])
    producer, checker = await place.open(), await place.open()
    await producer.begin()
    for gid in committed:
        await producer.run(mark_committed(gid))
    await producer.commit()
    answers = await checker.run(decide_many(reversed(gids)))
    assert answers == {gid: "committed" if gid in committed else "rolled_back" for gid in gids}
    assert len(place.query("select gid from tallystick_barrier where op = 'msg'")) == MANY


async def test_running_ones_are_told_apart_and_keep_no_other_from_being_decided(place: Place, gids: list[str]) -> None:
    running = {gids[0], gids[400], gids[401], gids[-1]}
    producer, checker = await place.open(), await place.open()
    await producer.begin()
    for gid in running:
        await producer.run(mark_committed(gid))
    answers = await checker.run(decide_many(gids, wait=0.1))
    decided = set() if place.engine == "sqlite" else set(gids) - running  # SQLite has one writer for everything
    assert answers == {gid: "rolled_back" if gid in decided else "running" for gid in gids}
    await producer.commit()
    assert await checker.run(decide_many(gids)) == {
        gid: "committed" if gid in running else "rolled_back" for gid in gids
    }


async def test_two_that_decide_the_same_at_once_come_to_the_same(place: Place, gids: list[str]) -> None:
    one, other = await place.open(), await place.open()
    answers = await asyncio.gather(
        one.run(decide_many(gids, wait=10)), other.run(decide_many(list(reversed(gids)), wait=10))
    )
    assert answers == [dict.fromkeys(gids, "rolled_back")] * 2


async def test_the_number_of_statements_does_not_grow_with_the_number_of_gids(place: Place, gids: list[str]) -> None:
    with closing(place.plain()) as connection:
        counted = _Counting(adapt_sync(connection))
        run_sync(counted, decide_many(gids))
    assert counted.statements < 60


class _Counting:
    """An adapter that counts what it is asked to run."""

    is_async = False

    def __init__(self, adapter: SyncAdapter) -> None:
        self._adapter = adapter
        self.statements = 0

    def execute(self, statement: Statement) -> Result:
        self.statements += 1
        return self._adapter.execute(statement)

    def __getattr__(self, name: str) -> object:
        return getattr(self._adapter, name)
