"""When the broker itself is in trouble: results are kept until they are durable, and nothing is lost at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from called_services import calls_of, done, lean, none_waiting, send, send_many, tried
from inner_broker import Inside, inside, rounds
from stores import FailingEngine, WatchedStore

from eventually import eventually_async
from tallystick.broker.calls.deliverer import CallSettings
from tallystick.core.backoff import Backoff
from tallystick.core.clock import SystemClock
from tallystick.core.errors import Busy, StorageFailed
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import CallClaim, ClaimCalls, ClaimedCalls, FinishCalls, StoreOp, StoreSettings, Written
from tallystick.store.rocksdb import open_rocksdb


class Stubborn(WatchedStore):
    """Refuses results of calls: for a while, or those of one gid for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0
        self.poison = ""
        self.refused: Exception = StorageFailed("not now")
        self.batches: list[int] = []

    def write(self, ops: Sequence[StoreOp], now: int) -> Written:
        for op in ops:
            if isinstance(op, FinishCalls):
                if self.refusals:
                    self.refusals -= 1
                    raise self.refused
                if self.poison in {result.gid for result in op.results}:
                    raise RuntimeError("a bug")
                self.batches.append(len(op.results))
        return super().write(ops, now)


class Overtaking(WatchedStore):
    """The clock goes on between a result that says `try again` and the next claim, so that claim finds it due again."""

    ahead = 0

    def write(self, ops: Sequence[StoreOp], now: int) -> Written:
        written = super().write(ops, now + self.ahead)
        if any(one.outcome == "error" for op in ops if isinstance(op, FinishCalls) for one in op.results):
            self.ahead += 3_600_000
        return written


async def test_a_call_that_is_due_again_while_its_last_result_is_on_its_way_is_made_again() -> None:
    """Its claim is given back at most once, because the call seems to be out, and not again and again."""
    async with inside(Overtaking()) as broker, lean() as there:
        there.answer = b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n"
        await send(broker, "t", there.url)
        await tried(broker, "t", 5)


async def test_a_result_is_kept_until_it_can_be_written_and_the_call_is_not_repeated() -> None:
    store = Stubborn()
    store.refusals = 4
    async with inside(store) as broker, lean() as there:
        await send(broker, "t", there.url)
        await done(broker, "t")
        assert store.refusals == 0
        assert len(there.urls) == 1
        assert (await calls_of(broker, "t")).calls[0].attempts == 1


async def test_while_results_cannot_be_written_no_more_is_claimed_than_the_limit() -> None:
    store = Stubborn()
    async with inside(store, calls_in_flight=20) as broker, lean() as there:
        store.refusals = 1_000_000
        await send_many(broker, there.url, 200)
        await rounds(5)
        assert len(there.urls) == 20
        store.refusals = 0
        await none_waiting(broker)
        assert len(there.urls) == len(set(there.urls)) == 200


async def test_a_busy_writer_loses_no_result() -> None:
    store = Stubborn()
    store.refused = Busy()
    async with inside(store) as broker, lean() as there:
        store.refusals = 3
        gids = await send_many(broker, there.url, 50)
        await done(broker, *gids)
        assert len(there.urls) == 50


async def test_a_result_that_the_store_cannot_take_is_no_harm_to_the_others() -> None:
    store = Stubborn()
    store.poison = "g7"
    async with inside(store, call_breaker_failures=100) as broker, lean() as there:
        gids = await send_many(broker, there.url, 40)
        await done(broker, *(gid for gid in gids if gid != "g7"))
        assert len(there.urls) == 40
        store.poison = ""
        await done(broker, "g7")
        assert len(there.urls) == 40


async def test_results_are_written_together() -> None:
    store = Stubborn()
    async with inside(store) as broker, lean() as there:
        await send_many(broker, there.url, 1_000)
        await none_waiting(broker)
        assert sum(store.batches) == 1_000
        assert len(store.batches) < 300


async def test_a_full_disk_stops_calls_and_they_go_on_when_there_is_room() -> None:
    engine = FailingEngine(may_pass=True)
    store = WatchedStore(engine)
    async with inside(store) as broker, lean() as there:
        there.answer = b""
        await send(broker, "t", there.url)

        async def out() -> bool:
            return len(there.urls) == 1

        await eventually_async(out, "the call is out")
        engine.fail()
        for transport in list(there.open):
            transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await rounds(3)
        engine.failing = None
        await done(broker, "t")
        assert len(there.urls) == 1


async def test_a_call_that_the_store_hands_out_twice_is_made_once() -> None:
    class Forgetful(WatchedStore):
        """Hands out every claim again with the next one, as after a lease that is over."""

        def __init__(self) -> None:
            super().__init__()
            self.last: list[CallClaim] = []

        def write(self, ops: Sequence[StoreOp], now: int) -> Written:
            written = super().write(ops, now)
            for result in written.results:
                if isinstance(result, ClaimedCalls):
                    fresh = list(result.claims)
                    result.claims.extend(self.last)
                    self.last = fresh
            return written

    async with inside(Forgetful()) as broker, lean() as there:
        there.answer = b""
        await send(broker, "a", f"{there.url}/a")
        await rounds(1)
        await send(broker, "b", f"{there.url}/b")
        await rounds(2)
        assert [url.partition("?")[0] for url in there.urls] == ["/a", "/b"]
        for transport in list(there.open):
            transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await done(broker, "a", "b")


# --- the end, and the next beginning ---------------------------------------------------------------------------------


def on_disk(path: Path) -> KvStore:
    """Tries so far apart that none is due again while a test looks."""
    return open_rocksdb(path, StoreSettings(calls=Backoff(60_000, 300_000)))


async def held(broker: Inside, count: int) -> None:
    async def look() -> bool:
        return len(broker.broker.calls._held) >= count

    await eventually_async(look, f"{count} calls are claimed")


async def test_at_the_end_what_was_not_tried_is_released_and_what_was_is_told(tmp_path: Path) -> None:
    async with lean() as there:
        async with inside(on_disk(tmp_path), clock=SystemClock(), calls_per_host=2) as broker:
            await send(broker, "first", there.url)
            await done(broker, "first")
            there.answer = b""
            await send_many(broker, there.url, 10)
            await held(broker, 4)  # two are out, two are claimed ahead
            broker.broker.calls._settings = CallSettings(drain_ms=200)
        store = on_disk(tmp_path)
        views = [store.calls(f"g{number}") for number in range(10)]
        tries = [view.calls[0].attempts for view in views if view]
        errors = {view.calls[0].last_error for view in views if view and view.calls[0].attempts}
        claim = ClaimCalls([store.channels()[0].id], 100, 10**9, 1_000)
        (claimed,) = store.write([claim], SystemClock().now_ms()).results
        store.close()
    assert sorted(tries) == [0] * 8 + [1] * 2
    assert errors == {"the broker stopped before the answer came"}
    assert isinstance(claimed, ClaimedCalls)
    assert len(claimed.claims) == 8  # none of them is held back by a lease of the broker that is gone


async def test_calls_that_are_out_get_time_to_be_answered(tmp_path: Path) -> None:
    async with lean() as there, inside(on_disk(tmp_path), clock=SystemClock()) as broker:
        there.answer = b""
        await send(broker, "t", there.url)
        await held(broker, 1)
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(broker.broker.calls.close())
        await asyncio.sleep(0.2)
        for transport in list(there.open):
            transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await closing
        assert (await calls_of(broker, "t")).state == "done"


async def test_what_a_dead_broker_had_claimed_is_made_at_once_by_the_next(tmp_path: Path) -> None:
    async with lean() as there:
        there.answer = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
        async with inside(on_disk(tmp_path), clock=SystemClock(), call_retry_first="200ms") as broker:
            await send_many(broker, there.url, 30)
            await rounds(2)
        store = on_disk(tmp_path)
        now = SystemClock().now_ms() + 3_600_000
        store.write([ClaimCalls([store.channels()[0].id], 100, 10**9, 3_600_000)], now)
        store.close()
        there.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        async with inside(on_disk(tmp_path), clock=SystemClock()) as broker:
            await none_waiting(broker)
