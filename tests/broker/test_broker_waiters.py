"""Long polls: nobody sleeps through what he waits for, and everybody is sent home at the end."""

from __future__ import annotations

import asyncio
import random
import time

import msgspec
import pytest
from inner_broker import Inside, inside
from stores import FailingEngine

from eventually import eventually_async
from tallystick.broker import waiters as waiters_module
from tallystick.broker.waiters import Waiters
from tallystick.core.errors import Busy, StorageFailed
from tallystick.core.message import Chunk, OutgoingMessage, messages_of
from tallystick.core.ops import Nack, Send
from tallystick.core.wire import ReceiveRequest, ResetRequest
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import PutTopic, StoreSettings

decode_chunk = msgspec.msgpack.Decoder(Chunk).decode


async def waits(waiters: Waiters, topic: str, seen: int, seconds: float = 30.0) -> float:
    """How long a wait takes."""
    began = time.monotonic()
    await waiters.wait((topic,), seen, seconds)
    return time.monotonic() - began


async def test_an_append_wakes_everybody_who_waits_for_the_topic_and_nobody_else() -> None:
    waiters = Waiters(100)
    woken = [asyncio.create_task(waits(waiters, "a", waiters.version("a"))) for _ in range(10)]
    other = asyncio.create_task(waits(waiters, "b", waiters.version("b")))
    await asyncio.sleep(0.05)
    waiters.appended({"a", "c"})
    assert max(await asyncio.gather(*woken)) < 10
    await asyncio.sleep(0)
    assert not other.done()
    waiters.appended({"b"})
    await other


async def test_an_append_between_looking_and_waiting_is_not_slept_through() -> None:
    waiters = Waiters(100)
    seen = waiters.version("a")
    waiters.appended({"a"})
    assert await waits(waiters, "a", seen) < 10


async def test_appends_to_others_change_nothing() -> None:
    waiters = Waiters(100)
    seen = waiters.version("a")
    for number in range(50):
        waiters.appended({f"t{number}"})
    assert waiters.version("a") == seen
    assert await waits(waiters, "a", seen, 0.05) >= 0.05


async def test_forgetting_names_wakes_once_too_often_rather_than_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters_module, "MAX_KNOWN", 10)
    waiters = Waiters(100)
    waiters.appended({"a"})
    seen = waiters.version("a")
    for number in range(25):
        waiters.appended({f"t{number}"})
    assert len(waiters._versions) <= 10
    assert await waits(waiters, "a", seen) < 10
    # From then on it waits again, and is woken.
    waiting = asyncio.create_task(waits(waiters, "a", waiters.version("a")))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    waiters.appended({"a"})
    assert await waiting < 10


async def test_time_that_is_up_ends_a_wait() -> None:
    waiters = Waiters(100)
    assert 0.1 <= await waits(waiters, "a", waiters.version("a"), 0.1) < 10
    assert await waits(waiters, "a", waiters.version("a"), 0) < 5
    assert await waits(waiters, "a", waiters.version("a"), -5) < 5


async def test_the_number_of_waits_is_limited_and_every_end_gives_a_place_back() -> None:
    waiters = Waiters(2)
    by_append = asyncio.create_task(waiters.wait(("a",), waiters.version("a"), 5))
    by_cancel = asyncio.create_task(waiters.wait(("b",), waiters.version("b"), 5))
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="2 long polls are waiting, the limit is 2"):
        await waiters.wait(("c",), waiters.version("c"), 5)
    waiters.appended({"a"})
    await by_append
    by_cancel.cancel()
    await asyncio.gather(by_cancel, return_exceptions=True)
    for _ in range(3):
        await waiters.wait(("c",), waiters.version("c"), 0.01)  # by time
    assert waiters._count == 0
    assert not waiters._waiting


async def test_a_wait_that_has_no_need_to_wait_takes_no_place() -> None:
    waiters = Waiters(0)
    seen = waiters.version("a")
    waiters.appended({"a"})
    await waiters.wait(("a",), seen, 5)


async def test_the_end_sends_everybody_home_and_lets_nobody_wait_again() -> None:
    waiters = Waiters(100)
    tasks = [asyncio.create_task(waits(waiters, f"t{number % 3}", 0)) for number in range(9)]
    await asyncio.sleep(0.02)
    waiters.close()
    assert max(await asyncio.gather(*tasks)) < 10
    assert await waits(waiters, "a", waiters.version("a")) < 10


async def test_one_who_is_sent_away_in_the_moment_of_the_append_is_gone() -> None:
    waiters = Waiters(100)
    gone = asyncio.create_task(waiters.wait(("a",), waiters.version("a"), 5))
    await asyncio.sleep(0)
    waiters.appended({"a"})
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone


# --- through a broker ----------------------------------------------------------------------------------------------


async def put(broker: Inside, *values: int) -> None:
    await broker.do(Send([OutgoingMessage("orders", str(value).encode(), key="k") for value in values]))


async def follow(broker: Inside, count: int) -> list[int]:
    """Everything of the queue that all messages go to, by long polls that are much longer than the test may take."""
    view = await broker.one(PutTopic("orders", 1))
    found: list[int] = []
    while len(found) < count:
        piece = await broker.door.fetch("orders", 0, len(found), 100, 10**6, 30_000)
        for raw in piece.chunks:
            found += [int(one.value) for one in messages_of(decode_chunk(raw), view.name, 0, len(found))]
    return found


async def test_a_write_that_failed_and_is_there_all_the_same_is_not_slept_through() -> None:
    engine = FailingEngine(may_pass=True)
    engine.stays = True
    async with inside(KvStore("s", lambda: engine, StoreSettings())) as broker:
        await broker.one(PutTopic("orders", 1))
        follower = asyncio.create_task(follow(broker, 2))
        await put(broker, 1)
        await asyncio.sleep(0.05)
        engine.fail()
        with pytest.raises(StorageFailed):
            await put(broker, 2)
        engine.failing = None
        await broker.look(lambda store: store.counts())
        assert await asyncio.wait_for(follower, 10) == [1, 2]


async def test_no_follower_misses_a_message_or_sleeps_through_one() -> None:
    async with inside() as broker:
        await broker.one(PutTopic("orders", 1))
        followers = [asyncio.create_task(follow(broker, 300)) for _ in range(20)]
        rng = random.Random(7)
        number = 0
        while number < 300:
            burst = min(300 - number, rng.choice([1, 1, 1, 5]))
            await put(broker, *range(number, number + burst))
            number += burst
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.005)
        found = await asyncio.wait_for(asyncio.gather(*followers), 60)
        assert found == [list(range(300))] * 20


async def test_a_receive_waits_and_is_woken_by_the_first_message() -> None:
    async with inside() as broker:
        waiting = asyncio.create_task(broker.door.receive("g", ReceiveRequest("orders", wait_ms=20_000)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        began = time.monotonic()
        await put(broker, 1)
        assert [one.message.value for one in await waiting] == [b"1"]
        assert time.monotonic() - began < 10


async def test_competing_receivers_share_what_comes() -> None:
    async with inside() as broker:

        async def work(found: list[int]) -> None:
            while True:
                for one in await broker.door.receive("g", ReceiveRequest("orders", wait_ms=20_000, max=3)):
                    found.append(int(one.message.value))

        found: list[list[int]] = [[] for _ in range(8)]
        workers = [asyncio.create_task(work(mine)) for mine in found]
        for number in range(100):
            await put(broker, number)

        async def all_of_them() -> bool:
            return sum(map(len, found)) == 100

        await eventually_async(all_of_them, "100 messages")
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert sorted(value for mine in found for value in mine) == list(range(100))


async def test_a_message_given_back_wakes_those_who_wait() -> None:
    async with inside() as broker:
        await put(broker, 1)
        (held,) = await broker.door.receive("g", ReceiveRequest("orders"))
        waiting = asyncio.create_task(broker.door.receive("g", ReceiveRequest("orders", wait_ms=20_000)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await broker.do(Nack("g", [held.receipt], delay_ms=0))
        (again,) = await asyncio.wait_for(waiting, 10)
        assert again.attempt == 2


async def test_receives_beyond_the_limit_are_told_to_come_again() -> None:
    async with inside(max_long_polls=1) as broker:
        waiting = asyncio.create_task(broker.door.receive("g", ReceiveRequest("orders", wait_ms=20_000)))
        await asyncio.sleep(0.05)
        with pytest.raises(Busy, match="long polls"):
            await broker.door.receive("g", ReceiveRequest("orders", wait_ms=20_000))
        # One that does not want to wait is no long poll.
        assert await broker.door.receive("g", ReceiveRequest("orders")) == []
        broker.broker.drain()
        assert await waiting == []


async def test_whoever_waits_gets_what_a_group_is_moved_back_to() -> None:
    async with inside() as broker:
        await broker.do(Send([OutgoingMessage("orders", b"a", key="k")]))
        (held,) = await broker.door.receive("g", ReceiveRequest("orders", invisible_ms=3_600_000))
        waiting = asyncio.create_task(broker.door.receive("g", ReceiveRequest("orders", wait_ms=60_000)))
        await asyncio.sleep(0.05)
        view = await broker.door.reset_group("g", ResetRequest("orders", "earliest"))
        assert (view.lag, view.leased) == (1, 0)
        async with asyncio.timeout(30):
            (again,) = await waiting
        assert (again.message.offset, again.attempt, again.receipt == held.receipt) == (0, 1, False)
