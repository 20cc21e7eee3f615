"""What a broker does by itself as time passes: deliver delayed messages, forget what is too old."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from inner_broker import inside
from prometheus_client import Histogram
from stores import FailingEngine

from eventually import eventually_async
from tallystick.broker.sweeps import AT_ONCE, sweep
from tallystick.broker.writer import SpaceGuard, Writer
from tallystick.core.clock import ManualClock, SystemClock
from tallystick.core.errors import PartUnavailable
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, PartRef, Prepare, PreparePart, Rollback, Send
from tallystick.core.wire import ReceiveRequest
from tallystick.store.kv.store import KvStore
from tallystick.store.memory import open_memory
from tallystick.store.protocol import ExpireParts, PromoteDelayed, Store, StoreOp, StoreSettings

NOW = 1_700_000_000_000


def part(name: str, ttl_ms: int) -> PreparePart:
    return PreparePart(name, [OutgoingMessage("orders", b"v")], ttl_ms=ttl_ms)


# --- a whole broker ------------------------------------------------------------------------------------------------


async def test_delayed_messages_are_delivered_on_time_and_in_the_order_of_their_times() -> None:
    async with inside(clock=SystemClock()) as broker:
        now = broker.broker.clock.now_ms()
        delays = {"late": 900, "early": 300, "middle": 600}
        await broker.do(
            Send([OutgoingMessage("orders", name.encode(), deliver_at=now + ms) for name, ms in delays.items()])
        )
        assert broker.visible() == 0
        arrived = []
        while len(arrived) < 3:
            for one in await broker.door.receive("g", ReceiveRequest("orders", wait_ms=5_000)):
                arrived.append((one.message.value.decode(), broker.broker.clock.now_ms() - now))
        assert [name for name, _ in arrived] == ["early", "middle", "late"]
        for name, after in arrived:
            assert delays[name] <= after < delays[name] + 3_000


async def test_a_delayed_message_of_a_transaction_waits_for_both() -> None:
    async with inside() as broker:
        message = OutgoingMessage("orders", b"v", deliver_at=broker.clock.now_ms() + 10_000)
        for gid in ("early", "late"):
            await broker.do(Prepare(gid, "shop", [message]))
        await broker.do(Commit("early"))
        await asyncio.sleep(0.3)
        assert broker.visible() == 0
        broker.clock.advance(10_000)

        async def look() -> bool:
            return broker.visible() == 1

        await eventually_async(look, "the message of the one that is committed")
        await asyncio.sleep(0.3)
        assert broker.visible() == 1
        await broker.do(Commit("late"))
        assert broker.visible() == 2


async def test_parts_and_tombstones_that_are_too_old_are_gone_soon_after_the_start() -> None:
    many = 2 * AT_ONCE + 10  # more than one sweep does at once
    clock = ManualClock(NOW)
    settings = StoreSettings(dedup_retention_ms=50_000)
    store = open_memory(settings)
    store.write([part(f"old{number}", 1_000) for number in range(many)] + [part("young", 100_000)], NOW)
    for start in range(0, many, 500):
        store.write([Rollback(f"r{number}") for number in range(start, min(start + 500, many))], NOW)
    clock.advance(60_000)
    store.write([Rollback("recent")], clock.now_ms())
    async with inside(store, clock) as broker:

        async def look() -> bool:
            return (await broker.look(lambda store: store.counts())).parts == 1

        await eventually_async(look, "one part", 40)

        async def forgotten() -> bool:
            found = await broker.look(lambda store: store.scan("rolled_back", None, None, 5_000))
            return [view.gid for view in found[0]] == ["recent"]

        await eventually_async(forgotten, "one tombstone", 40)
        with pytest.raises(PartUnavailable):
            await broker.do(Commit("late", [PartRef("old1", 1)]))
        await broker.do(Commit("in-time", [PartRef("young", 1)]))
        assert broker.visible() == 1


async def test_messages_beyond_their_retention_are_trimmed() -> None:
    clock = ManualClock(NOW)
    store = open_memory(StoreSettings(retention_ms=10_000))
    store.write([Send([OutgoingMessage("orders", b"old")])], NOW)
    clock.advance(10_001)
    async with inside(store, clock) as broker:

        async def look() -> bool:
            view = store.topic("orders")
            return view is not None and sum(view.starts) == 1

        await eventually_async(look, "the start of the queue to move", 40)
        assert broker.visible() == 1


# --- one sweep -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def sweeping(
    store: Store, clock: ManualClock | SystemClock, op: StoreOp, every: float
) -> AsyncIterator[asyncio.Task[None]]:
    writer = Writer(store, clock, SpaceGuard(None, 0), 10**6, lambda _: None, Histogram("seconds", "", registry=None))
    task = asyncio.create_task(sweep(writer, clock, lambda: op, every, "a test"))
    try:
        yield task
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await writer.stop()


async def test_a_sweep_goes_on_at_once_while_there_is_more() -> None:
    store = open_memory()
    store.write([part(f"p{number}", 0) for number in range(50)], NOW)
    began = time.monotonic()
    async with sweeping(store, ManualClock(NOW), ExpireParts(5), every=60):

        async def look() -> bool:
            return store.counts().parts == 0

        await eventually_async(look, "no parts", 40)
    assert time.monotonic() - began < 50


async def test_a_sweep_wakes_when_the_next_one_is_due() -> None:
    store, clock = open_memory(), SystemClock()
    now = clock.now_ms()
    store.write([Send([OutgoingMessage("orders", b"v", deliver_at=now + 300)])], now)
    async with sweeping(store, clock, PromoteDelayed(10), every=60):

        async def look() -> bool:
            view = store.topic("orders")
            return view is not None and sum(view.ends) == 1

        await eventually_async(look, "the delayed message", 40)
        assert 300 <= clock.now_ms() - now < 15_000


async def test_a_store_that_fails_does_not_end_a_sweep() -> None:
    engine = FailingEngine(may_pass=True)
    store = KvStore("s", lambda: engine, StoreSettings())
    store.write([part("p", 0)], NOW)
    engine.fail()
    async with sweeping(store, ManualClock(NOW), ExpireParts(5), every=0.02):
        await asyncio.sleep(0.3)
        assert store.failure() is not None
        engine.failing = None

        async def look() -> bool:
            return store.failure() is None and store.counts().parts == 0

        await eventually_async(look, "no parts", 40)
