"""Isolation levels, snapshots, journals and interruptions that could make a check-back see the wrong thing."""

from __future__ import annotations

import asyncio
import contextlib

import psycopg.errors
import pytest
from parties import Place, kind_params

from tallystick.barrier import AlreadyDecided, decide, decide_many, mark_committed

MYSQL_DRIVERS = [
    *("mysqlclient", "mysqlclient-autocommit", "mysql-connector-autocommit", "async-aiomysql", "async-orm-asyncmy")
]
MYSQL_KINDS = kind_params(["pymysql", "pymysql-autocommit", "core-mysql", "orm-mysql", *MYSQL_DRIVERS])


@pytest.mark.parametrize("kind", MYSQL_KINDS)
async def test_dirty_read_is_not_an_outcome(place: Place, gid: str) -> None:
    running, checker = await place.open(), await place.open()
    await running.begin()
    await running.run(mark_committed(gid))
    await checker.execute("set session transaction isolation level read uncommitted")
    await checker.rollback()
    assert await checker.run(decide(gid, wait=0.1)) == "running"
    await running.rollback()
    assert await checker.run(decide(gid)) == "rolled_back"


@pytest.mark.parametrize("kind", MYSQL_KINDS)
async def test_old_snapshot_does_not_hide_the_check_back(place: Place, gid: str) -> None:
    late, checker = await place.open(), await place.open()
    await late.begin()
    await late.execute("select count(*) from tallystick_barrier")
    assert await checker.run(decide(gid)) == "rolled_back"
    with pytest.raises(AlreadyDecided) as caught:
        await late.run(mark_committed(gid))
    assert caught.value.outcome == "rolled_back"
    await late.rollback()


@pytest.mark.parametrize("kind", kind_params(["psycopg"]))
async def test_old_snapshot_in_postgresql_fails_the_late_transaction(place: Place, gid: str) -> None:
    late, checker = await place.open(), await place.open()
    late.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    await late.begin()
    await late.execute("select count(*) from tallystick_barrier")
    assert await checker.run(decide(gid)) == "rolled_back"
    # The driver's own error, so that what retries serialization failures retries this one.
    with pytest.raises(psycopg.errors.SerializationFailure):
        await late.run(mark_committed(gid))
    await late.rollback()
    assert await checker.run(decide(gid)) == "rolled_back"


@pytest.mark.parametrize("kind", kind_params(["psycopg", "core-postgresql"]))
@pytest.mark.parametrize(("end", "answer"), [("commit", "committed"), ("rollback", "rolled_back")])
async def test_serializable_session_still_gets_an_answer(place: Place, gid: str, end: str, answer: str) -> None:
    running, checker = await place.open(), await place.open()
    await checker.execute("set session characteristics as transaction isolation level serializable")
    await checker.commit()
    await running.begin()
    await running.run(mark_committed(gid))
    check = asyncio.create_task(checker.run(decide(gid, wait=20)))
    await asyncio.sleep(0.2)
    assert not check.done()
    await running.do(end)
    assert await check == answer


@pytest.mark.parametrize("kind", kind_params(["psycopg"]))
async def test_statement_timeout_shorter_than_the_wait_is_not_an_outcome(place: Place, gid: str) -> None:
    running, checker = await place.open(), await place.open()
    await running.begin()
    await running.run(mark_committed(gid))
    await checker.execute("set statement_timeout = '200ms'")
    await checker.commit()
    assert await checker.run(decide(gid, wait=10)) == "running"
    await running.commit()
    assert await checker.run(decide(gid)) == "committed"


@pytest.mark.parametrize("kind", ["sqlite3", "core-sqlite", "async-orm-sqlite"])
@pytest.mark.parametrize(("end", "answer"), [("commit", "committed"), ("rollback", "rolled_back")])
async def test_write_ahead_log_of_sqlite(place: Place, gid: str, end: str, answer: str) -> None:
    assert place.query("pragma journal_mode = wal") == [("wal",)]
    running, checker = await place.open(), await place.open()
    await running.begin()
    await running.run(mark_committed(gid))
    assert await checker.run(decide(gid, wait=0.1)) == "running"
    check = asyncio.create_task(checker.run(decide(gid, wait=20)))
    await asyncio.sleep(0.1)
    await running.do(end)
    assert await check == answer


@pytest.mark.parametrize("kind", kind_params(["async-psycopg", "async-core-postgresql", "async-orm-postgresql"]))
async def test_cancelled_check_leaves_nothing_behind(place: Place, gid: str) -> None:
    running, checker = await place.open(), await place.open()
    await running.begin()
    await running.run(mark_committed(gid))
    check = asyncio.create_task(checker.run(decide(gid, wait=60)))
    await asyncio.sleep(0.3)
    check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await check
    assert not await checker.in_transaction()
    await running.commit()
    assert await checker.run(decide(gid)) == "committed"


@pytest.mark.parametrize("kind", kind_params(["sqlite3", "psycopg", "pymysql"]))
async def test_shared_wait_is_not_multiplied_by_the_number_of_running_transactions(place: Place, gid: str) -> None:
    """With an injected clock: once the wait is used up, no further insert is tried."""
    gids = [f"{gid}-{index}" for index in range(3)]
    with contextlib.closing(place.plain()) as connection:
        cursor = connection.cursor()
        cursor.execute("begin immediate" if place.engine == "sqlite" else "begin")
        for each in gids:
            cursor.execute(
                "insert into tallystick_barrier (trans_type, gid, branch_id, op, barrier_id, reason) "
                f"values ('msg', '{each}', '00', 'msg', '01', 'msg')"
            )
        # SQLite's one writer is waited for once, for all of them together.
        ticks = iter([0.0, 0.0] if place.engine == "sqlite" else [0.0, 0.0, 0.5, 0.7])
        checker = await place.open()
        answers = await checker.run(decide_many(gids, wait=0.6, clock=lambda: next(ticks)))
        assert answers == dict.fromkeys(gids, "running")
        assert next(ticks, None) is None
        cursor.execute("rollback")
        cursor.close()
