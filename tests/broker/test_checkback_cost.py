"""What a round of checks costs: what is due, not what is stored. Counted in keys, never in seconds."""

from __future__ import annotations

import asyncio

import pytest
from inner_broker import Inside, inside, rounds
from stores import CountingEngine, WatchedStore

from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Answer, AnswerChecks, Check, Commit, Prepare

HOUR = 3_600_000


async def pending(broker: Inside, name: str, count: int, group: str = "shop", after_ms: int = HOUR) -> list[str]:
    gids = [f"{name}-{number}" for number in range(count)]
    check, messages = Check(after_ms=after_ms), [OutgoingMessage("orders", b"v")]
    for start in range(0, count, 1_000):
        await broker.door.batch([Prepare(gid, group, messages, check) for gid in gids[start : start + 1_000]], 1)
    return gids


async def cost_of_a_round(count: int, answer: Answer) -> tuple[int, int, int]:
    """Keys looked up, walked over and written from the moment that 100 of `count` are due until they are answered."""
    engine = CountingEngine()
    async with inside(WatchedStore(engine)) as broker:
        await pending(broker, "later", count)
        resolved = await pending(broker, "resolved", count // 2, after_ms=900)
        await broker.door.batch([Commit(gid) for gid in resolved], 1)
        due = await pending(broker, "due", 100, after_ms=1_000)
        # A first round that finds nothing, so that the one that is measured is like any other.
        assert await broker.poll(ms=250) == []
        broker.clock.advance(1_000)
        before = engine.touched
        asked = await broker.poll(most=1_000)
        assert sorted(one.gid for one in asked) == sorted(due)
        await broker.do(AnswerChecks(dict.fromkeys(due, answer)))
        return tuple(after - earlier for after, earlier in zip(engine.touched, before, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("answer", ["committed", "unknown"])
async def test_a_round_costs_the_same_however_much_is_pending(answer: Answer) -> None:
    few = await cost_of_a_round(1_000, answer)
    many = await cost_of_a_round(20_000, answer)
    gets, scanned, written = many
    # A few keys for each of the 100 that are due, and a handful for the round itself.
    assert gets <= 400
    assert scanned <= 150
    assert written <= 1_000
    # The sweeps that run beside it may add one look or another.
    assert all(abs(one - other) <= 10 for one, other in zip(few, many, strict=True))


async def test_the_count_finds_a_round_that_walks_over_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.store.kv.checks.islice", lambda found, most: list(found)[:most])
    _, scanned, _ = await cost_of_a_round(2_000, "committed")
    assert scanned > 2_000


async def test_nothing_due_costs_next_to_nothing() -> None:
    engine = CountingEngine()
    async with inside(WatchedStore(engine)) as broker:
        await pending(broker, "later", 5_000)
        member = broker.polling("m")
        await rounds()
        before = sum(engine.touched)
        for _ in range(5):
            broker.clock.advance(1_000)  # enough for the group to be looked at again
            await rounds(1)
        assert sum(engine.touched) - before <= 50
        broker.broker.checkback.members.close()
        await member


async def test_dead_groups_with_much_that_is_due_cost_next_to_nothing() -> None:
    engine = CountingEngine()
    async with inside(WatchedStore(engine)) as broker:
        for number in range(20):
            await pending(broker, f"dead{number}", 250, group=f"dead{number}", after_ms=0)
        await pending(broker, "later", 10)
        members = [asyncio.create_task(broker.poll(f"m{number}")) for number in range(3)]
        await rounds()
        before = sum(engine.touched)
        for _ in range(5):
            broker.clock.advance(1_000)
            await rounds(1)
        assert sum(engine.touched) - before <= 50
        broker.broker.checkback.members.close()
        await asyncio.gather(*members)
