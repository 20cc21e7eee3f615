"""The check-back's four answers, over every driver and database."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from parties import Party, Place

from tallystick.barrier import AlreadyDecided, decide, decide_many, mark_committed
from tallystick.barrier.operations.barrier import decide_close

PATIENT = 20.0


async def change_and_mark(place: Place, gid: str) -> Party:
    """A local transaction that has done all its work and is still open."""
    party = await place.open()
    await party.begin()
    await party.execute("insert into account (id, balance) values (1, 100)")
    await party.run(mark_committed(gid))
    return party


async def test_committed_transaction_is_told_committed(place: Place, gid: str) -> None:
    party = await change_and_mark(place, gid)
    await party.commit()
    checker = await place.open()
    assert await checker.run(decide(gid)) == "committed"
    assert await checker.run(decide(gid)) == "committed"
    assert place.query("select balance from account") == [(100,)]


async def test_rolled_back_transaction_is_told_rolled_back(place: Place, gid: str) -> None:
    party = await change_and_mark(place, gid)
    await party.rollback()
    checker = await place.open()
    assert await checker.run(decide(gid)) == "rolled_back"
    assert place.query("select balance from account") == []


async def test_transaction_that_never_started_is_rolled_back_and_a_late_one_fails(place: Place, gid: str) -> None:
    checker = await place.open()
    assert await checker.run(decide(gid)) == "rolled_back"
    late = await place.open()
    await late.begin()
    await late.execute("insert into account (id, balance) values (1, 100)")
    with pytest.raises(AlreadyDecided, match="rolled back under this gid") as caught:
        await late.run(mark_committed(gid))
    assert (caught.value.gid, caught.value.outcome) == (gid, "rolled_back")
    await late.rollback()
    assert await checker.run(decide(gid)) == "rolled_back"
    assert place.query("select balance from account") == []


async def test_running_transaction_is_told_running_after_the_wait(place: Place, gid: str) -> None:
    party = await change_and_mark(place, gid)
    checker = await place.open()
    started = time.monotonic()
    assert await checker.run(decide(gid, wait=1.0)) == "running"
    assert time.monotonic() - started > 0.5
    await party.commit()
    assert await checker.run(decide(gid)) == "committed"


@pytest.mark.parametrize(("end", "answer"), [("commit", "committed"), ("rollback", "rolled_back")])
async def test_check_waits_for_a_running_transaction_and_tells_the_truth(
    place: Place, gid: str, end: str, answer: str
) -> None:
    party = await change_and_mark(place, gid)
    checker = await place.open()
    check = asyncio.create_task(checker.run(decide(gid, wait=PATIENT)))
    await asyncio.sleep(0.2)
    assert not check.done()
    await party.do(end)
    assert await check == answer


async def test_gid_used_twice_is_refused(place: Place, gid: str) -> None:
    party = await change_and_mark(place, gid)
    await party.commit()
    await party.begin()
    with pytest.raises(AlreadyDecided, match="committed already") as caught:
        await party.run(mark_committed(gid))
    assert caught.value.outcome == "committed"
    await party.rollback()


@pytest.mark.parametrize("bulk", [decide_many, decide_close])
async def test_many_are_decided_at_once_and_a_running_one_does_not_hold_up_the_others(
    place: Place, gid: str, bulk: Any
) -> None:
    committed, rolled_back, absent = (f"{gid}-{word}" for word in ("committed", "rolled-back", "absent"))
    done = await place.open()
    await done.begin()
    await done.run(mark_committed(committed))
    await done.commit()
    checker = await place.open()
    assert await checker.run(decide(rolled_back)) == "rolled_back"
    running = await change_and_mark(place, f"{gid}-running")

    answers = await checker.run(bulk([f"{gid}-running", committed, rolled_back, absent, committed], wait=0.2))
    await running.rollback()

    # In SQLite a running transaction keeps every writer out, so the absent one cannot be decided meanwhile.
    expected = "running" if place.engine == "sqlite" else "rolled_back"
    assert answers == {
        f"{gid}-running": "running",
        committed: "committed",
        rolled_back: "rolled_back",
        absent: expected,
    }
    assert await checker.run(bulk([absent, f"{gid}-running"])) == {
        absent: "rolled_back",
        f"{gid}-running": "rolled_back",
    }


async def test_nothing_to_decide(place: Place) -> None:
    checker = await place.open()
    assert await checker.run(decide_many([])) == {}
    assert await checker.run(decide_close([])) == {}


async def test_those_that_lie_far_apart_are_told_as_well(place: Place, gid: str) -> None:
    """Between the first and the last are more rows of others than are looked at together; and a database may have
    an order of its own, in which `B` is between `a` and `c`."""
    others = [f"{gid}-b{number}" for number in range(12)]
    committed = [f"{gid}-a", f"{gid}-c", f"{gid}-B"]
    done = await place.open()
    await done.begin()
    for one in (*others, *committed):
        await done.run(mark_committed(one))
    await done.commit()
    checker = await place.open()
    absent = [f"{gid}-b3x", f"{gid}-A"]
    asked = [*absent, *committed]
    expected = {one: "committed" if one in committed else "rolled_back" for one in asked}
    assert await checker.run(decide_close(asked)) == expected
    assert await checker.run(decide_close(sorted(asked))) == expected


async def test_check_leaves_the_connection_as_it_was(place: Place, gid: str) -> None:
    settings = {
        "sqlite": "pragma busy_timeout",
        "postgresql": "select current_setting('lock_timeout'), current_setting('transaction_isolation')",
        "mysql": "select @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@tx_isolation",
    }
    checker = await place.open()
    before = (await checker.execute(settings[place.engine])).rows
    await checker.rollback()
    running = await change_and_mark(place, gid)
    assert await checker.run(decide_many([gid, f"{gid}-2"], wait=0.2)) != {}
    await running.rollback()
    assert not await checker.in_transaction()
    assert (await checker.execute(settings[place.engine])).rows == before
    await checker.rollback()
