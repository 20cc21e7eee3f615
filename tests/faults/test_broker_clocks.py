"""Clocks that jump: timers come early or late, nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tallystick.broker.broker import Broker
from tallystick.broker.config import load_config
from tallystick.core.clock import ManualClock, SystemClock
from tallystick.core.ids import new_gid, new_lease_id
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, AnswerChecks, Check, ClientOp, Commit, Prepare, Rollback, Send
from tallystick.core.wire import CheckPoll, ReceiveRequest

pytestmark = pytest.mark.fault

HOUR = 3_600_000
JUMPS = [HOUR, -HOUR, 24 * HOUR, -24 * HOUR]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    flags = {"data_dir": str(tmp_path), "min_free_bytes": 0, "check_timeout": "200ms"}
    made = Broker(load_config(flags=flags, environ={}), clock=ManualClock())
    yield made
    await made.close()


def jump(broker: Broker, ms: int) -> None:
    assert isinstance(broker.clock, ManualClock)
    broker.clock.step(ms)


def pass_by(broker: Broker, ms: int) -> None:
    assert isinstance(broker.clock, ManualClock)
    broker.clock.advance(ms)


async def do(broker: Broker, op: ClientOp) -> str:
    (result,) = await broker.door().batch([op], 100)
    if result is None:
        return "ok"
    return result.error or ("duplicate" if result.duplicate else "ok")


def prepare(gid: str, after_ms: int = 1_000) -> Prepare:
    return Prepare(gid, "shop", [OutgoingMessage("orders", gid.encode())], Check(after_ms=after_ms))


async def state(broker: Broker, gid: str) -> str | None:
    found = await broker.door().whole(gid)
    return found.transaction.state if found else None


@pytest.mark.parametrize("ms", JUMPS)
async def test_a_jump_changes_no_outcome_and_expires_nothing_before_its_retention(broker: Broker, ms: int) -> None:
    for gid in ("done", "undone", "open"):
        await do(broker, prepare(gid))
    await do(broker, Commit("done"))
    await do(broker, Rollback("undone"))
    await do(broker, Send([OutgoingMessage("orders", b"sent")], "sent"))
    jump(broker, ms)
    await asyncio.sleep(0.5)  # the sweeps have had their turn
    assert [await state(broker, gid) for gid in ("done", "undone", "sent", "open")] == [
        "committed",
        "rolled_back",
        "committed",
        "prepared",
    ]
    assert await do(broker, Commit("done")) == "duplicate"
    assert await do(broker, Commit("undone")) == "outcome_conflict"
    assert await do(broker, prepare("undone")) == "already_resolved"
    assert await do(broker, Send([OutgoingMessage("orders", b"sent")], "sent")) == "duplicate"
    assert await do(broker, prepare("open")) == "duplicate"
    assert await do(broker, Commit("open")) == "ok"
    view = broker.door().known_topic("orders")
    assert (sum(view.starts), sum(view.ends)) == (0, 3)


@pytest.mark.parametrize("ms", JUMPS)
async def test_after_a_jump_new_work_is_checked_and_delivered_as_before(broker: Broker, ms: int) -> None:
    await do(broker, prepare("before", after_ms=0))
    await broker.door().poll_checks(CheckPoll("shop", "m", wait_ms=2_000))
    jump(broker, ms)
    await do(broker, prepare("after", after_ms=0))
    asked: set[str] = set()
    for _ in range(5):
        asked |= {one.gid for one in await broker.door().poll_checks(CheckPoll("shop", "m", wait_ms=2_000))}
        if "after" in asked:
            break
    assert "after" in asked
    await do(broker, AnswerChecks({"after": "committed"}))
    deliveries = await broker.door().receive("g", ReceiveRequest("orders", wait_ms=2_000))
    assert [one.message.value for one in deliveries] == [b"after"]
    assert await state(broker, "before") == "prepared"


async def asked_about(broker: Broker, *gids: str) -> None:
    """Returns once a member of the group has been asked about the transactions; time stands still meanwhile."""
    missing = set(gids)
    async with asyncio.timeout(20):
        while missing:
            missing -= {one.gid for one in await broker.door().poll_checks(CheckPoll("shop", "m", wait_ms=500))}


STEPS = [[HOUR], [-HOUR], [HOUR, -HOUR], [-HOUR, HOUR]]


@pytest.mark.parametrize("steps", STEPS)
async def test_a_check_comes_as_long_after_its_prepare_as_ever_whatever_the_clock_was_set_to(
    broker: Broker, steps: list[int]
) -> None:
    waiting = asyncio.create_task(broker.door().poll_checks(CheckPoll("shop", "first", wait_ms=60_000)))
    await do(broker, prepare("before", after_ms=5 * HOUR))
    for ms in steps:
        await asyncio.sleep(0.3)  # a few rounds, which note when they will look again
        jump(broker, ms)
    await asyncio.sleep(0.3)
    waiting.cancel()
    await do(broker, prepare("after", after_ms=2_000))
    pass_by(broker, 2_000)
    await asked_about(broker, "after")


@pytest.mark.parametrize("steps", [[-HOUR], [HOUR, -HOUR], [-HOUR, -24 * HOUR]])
async def test_what_waits_for_its_check_does_not_wait_for_the_clock_to_come_round_again(
    broker: Broker, steps: list[int]
) -> None:
    """Its stored time is further ahead than any check is ever put: it dates from before the clock was set back."""
    await do(broker, prepare("waiting", after_ms=10_000))
    await do(broker, prepare("asked", after_ms=0))
    await asked_about(broker, "asked")
    for ms in steps:
        jump(broker, ms)
        await broker.door().poll_checks(CheckPoll("shop", "silent", wait_ms=300))
    await asyncio.sleep(0.5)  # whoever was asked has not answered in time
    for _ in range(4):
        await do(broker, prepare(new_gid("new"), after_ms=60_000))  # others in the same line do not hold it up
    pass_by(broker, 61_000)
    await asked_about(broker, "waiting", "asked")


@pytest.mark.parametrize("ms", JUMPS)
async def test_leases_after_a_jump_end_early_or_late_and_the_stale_one_is_refused(broker: Broker, ms: int) -> None:
    await do(broker, Send([OutgoingMessage("orders", b"a")]))
    (first,) = await broker.door().receive("g", ReceiveRequest("orders", invisible_ms=60_000))
    jump(broker, ms)
    again = await broker.door().receive("g", ReceiveRequest("orders", invisible_ms=60_000))
    if ms > 0:
        (second,) = again
        assert second.attempt == 2
        assert await do(broker, Ack("g", [first.receipt])) == "stale_lease"
        assert await do(broker, Ack("g", [second.receipt])) == "ok"
    else:
        assert again == []
        assert await do(broker, Ack("g", [first.receipt])) == "ok"
    jump(broker, 2 * abs(ms))
    assert await broker.door().receive("g", ReceiveRequest("orders")) == []


async def test_jumps_back_and_forth_while_transactions_run(broker: Broker) -> None:
    committed = set()
    for number in range(60):
        gid = f"t{number}"
        assert await do(broker, prepare(gid, after_ms=number % 3)) == "ok"
        jump(broker, JUMPS[number % 4] * (1 if number % 8 < 4 else 2))
        if number % 2:
            assert await do(broker, Commit(gid)) == "ok"
            committed.add(gid.encode())
    seen = []
    for _ in range(3):
        seen += [one.message.value for one in await broker.door().receive("g", ReceiveRequest("orders", max=1_000))]
    assert sorted(seen) == sorted(committed)
    assert len((await broker.door().transactions("prepared", None, None, 100)).transactions) == 30


def test_ids_do_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    assert len({new_gid("store") for _ in range(20_000)}) == 20_000
    assert len({new_lease_id() for _ in range(20_000)}) == 20_000


def test_the_machines_clock_is_held_over_small_steps_back_and_believed_over_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_000_000]
    monkeypatch.setattr("time.time_ns", lambda: now[0] * 1_000_000)
    clock, seen = SystemClock(), []
    for step in (0, 10, -5, -20, 30, -59_000, -10_000, 1):
        now[0] += step
        seen.append(clock.now_ms())
    assert seen == [1_000_000, 1_000_010, 1_000_010, 1_000_010, 1_000_015, 1_000_015, 931_015, 931_016]
