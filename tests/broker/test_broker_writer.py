"""The single writer: one group commit for all that waits, an answer only when it is durable."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import Histogram
from stores import FailingEngine, WatchedStore

from eventually import eventually
from tallystick.broker import writer as writer_module
from tallystick.broker.writer import SpaceGuard, Writer
from tallystick.core.calls import OutgoingCall
from tallystick.core.clock import ManualClock
from tallystick.core.errors import Busy, Draining, StorageFailed, StorageFull, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare, PreparePart, Rollback, Send
from tallystick.store.kv import keys
from tallystick.store.kv.engine import AREAS, Changes, EngineFailed
from tallystick.store.kv.store import KvStore
from tallystick.store.memory import MemoryEngine, open_memory
from tallystick.store.protocol import Guarded, Store


@contextlib.asynccontextmanager
async def writing(
    store: Store, space: SpaceGuard | None = None, max_waiting: int = 64 * 1024 * 1024, heard: list[Any] | None = None
) -> AsyncIterator[Writer]:
    seconds = Histogram("seconds", "", registry=None)
    told = [] if heard is None else heard
    made = Writer(store, ManualClock(), space or SpaceGuard(None, 0), max_waiting, told.append, seconds)
    try:
        yield made
    finally:
        if isinstance(store, WatchedStore):
            store.gate.set()
        await made.stop()


def send(value: str = "v", gid: str | None = None) -> Send:
    return Send([OutgoingMessage("orders", value.encode())], gid)


def ends(store: Store) -> int:
    topic = store.topic("orders")
    return sum(topic.ends) if topic else 0


async def held_up(writer: Writer, store: WatchedStore) -> asyncio.Future[Any]:
    """Let a first operation in, and hold the writer up with it."""
    store.entered.clear()
    store.gate.clear()
    first = writer.submit([send("first")])
    assert await asyncio.to_thread(store.entered.wait, 10)
    return first


# --- group commit --------------------------------------------------------------------------------------------------


async def test_everything_that_waits_goes_into_one_group_commit() -> None:
    store = WatchedStore()
    async with writing(store) as writer:
        first = await held_up(writer, store)
        others = [writer.submit([send(str(number)), send(str(number))]) for number in range(500)]
        store.gate.set()
        answers = await asyncio.gather(first, *others)
        assert store.writes == [1, 1_000]
        assert all(len(answer) == 2 for answer in answers[1:])
        assert ends(store) == 1_001


async def test_each_gets_the_answers_to_its_own_operations() -> None:
    store = WatchedStore()
    async with writing(store) as writer:
        first = await held_up(writer, store)
        mixed = [
            [send("a", "g1"), Commit("unknown")],
            [],
            [send("a", "g1")],
            [Rollback("g2"), Commit("g2"), send("b")],
        ]
        futures = [writer.submit(ops) for ops in mixed]
        store.gate.set()
        await first
        answers = await asyncio.gather(*futures)
        words = [[(one.error or one.duplicate) if one is not None else None for one in answer] for answer in answers]
        assert words == [[False, "not_found"], [], [True], [None, "outcome_conflict", False]]
        assert store.writes == [1, 6]


async def test_a_group_commit_is_bounded_in_operations_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = WatchedStore()
    monkeypatch.setattr(writer_module, "MAX_BATCH_OPS", 10)
    monkeypatch.setattr(writer_module, "MAX_BATCH_BYTES", 5_000)
    async with writing(store) as writer:
        first = await held_up(writer, store)
        by_count = [writer.submit([send()] * 4, 1) for _ in range(5)]
        by_bytes = [writer.submit([send()], 2_000) for _ in range(4)]
        alone = writer.submit([send()] * 15, 9_000)  # larger than any bound, and still taken
        last = writer.submit([send()], 1)
        store.gate.set()
        await asyncio.gather(first, *by_count, *by_bytes, alone, last)
        assert store.writes == [1, 8, 8, 6, 2, 15, 1]


async def test_the_order_of_submission_is_the_order_of_execution() -> None:
    store = WatchedStore()
    async with writing(store) as writer:
        first = await held_up(writer, store)
        prepare = writer.submit([Prepare("t", "shop", [OutgoingMessage("orders", b"v")])])
        commit = writer.submit([Commit("t")])
        rollback = writer.submit([Rollback("t")])
        store.gate.set()
        await asyncio.gather(first, prepare, commit)
        assert (await rollback)[0].error == "outcome_conflict"  # type: ignore[union-attr]


async def test_an_answer_comes_after_the_write_and_those_who_wait_are_told_before_it() -> None:
    store, heard = WatchedStore(), []  # type: ignore[var-annotated]
    async with writing(store, heard=heard) as writer:
        first = await held_up(writer, store)
        await asyncio.sleep(0.05)
        assert not first.done()
        assert heard == []
        first.add_done_callback(lambda _: heard.append("answered"))
        store.gate.set()
        await first
        await asyncio.sleep(0)
        assert [getattr(one, "appended", one) for one in heard] == [{("orders", 0)}, "answered"]


async def test_one_who_left_costs_the_others_nothing() -> None:
    store = WatchedStore()
    async with writing(store) as writer:
        first = await held_up(writer, store)
        leaving, staying = writer.submit([send("left", "gone")]), writer.submit([send("stays", "here")])
        leaving.cancel()
        store.gate.set()
        await asyncio.gather(first, staying)
        # What was handed in is done all the same: nobody can know that it is not.
        assert [store.transaction(gid) is not None for gid in ("gone", "here")] == [True, True]


# --- looking -------------------------------------------------------------------------------------------------------


async def test_a_look_sees_what_was_handed_in_before_it_once_that_is_durable() -> None:
    store = WatchedStore()
    async with writing(store) as writer:
        first = await held_up(writer, store)
        before = writer.look(ends)
        second = writer.submit([send("second")])
        both = writer.look(ends)
        await asyncio.sleep(0.05)
        assert not before.done()
        store.gate.set()
        await asyncio.gather(first, second)
        # Both looks and the write went into one turn: what they see is durable, and has all that came before them.
        assert await before >= 1
        assert await both == 2


async def test_a_look_never_sees_a_write_that_failed() -> None:
    engine = FailingEngine(may_pass=False)
    store = KvStore("s", lambda: engine, open_memory().settings)
    async with writing(store) as writer:
        await writer.submit([send("kept", "kept")])
        engine.fail()
        failed, look = writer.submit([send("lost", "lost")]), writer.look(lambda store: store.transaction("lost"))
        for future in (failed, look):
            with pytest.raises(StorageFailed, match="the disk is full"):
                await future
        assert ends(store) == 1


async def test_what_a_look_raises_is_raised_to_the_one_who_looked() -> None:
    store = WatchedStore()
    async with writing(store) as writer:
        first = await held_up(writer, store)
        broken = writer.look(lambda _: 1 / 0)
        fine, written = writer.look(lambda _: "seen"), writer.submit([send()])
        store.gate.set()
        await asyncio.gather(first, written)
        with pytest.raises(ZeroDivisionError):
            await broken
        assert await fine == "seen"


async def test_looks_happen_on_the_writers_thread() -> None:
    async with writing(WatchedStore()) as writer:
        assert await writer.look(lambda _: threading.current_thread().name) == "tallystick-writer"


# --- backpressure --------------------------------------------------------------------------------------------------


async def test_beyond_its_bytes_the_writer_is_busy_until_there_is_room() -> None:
    store = WatchedStore()
    async with writing(store, max_waiting=10_000) as writer:
        first = await held_up(writer, store)
        waiting = [writer.submit([send()], 4_000) for _ in range(2)]
        with pytest.raises(Busy):
            writer.submit([send()], 4_000)
        waiting.append(writer.submit([send()], 2_000))
        with pytest.raises(Busy):
            writer.submit([send()], 1)
        with pytest.raises(Busy):
            writer.look(ends)
        store.gate.set()
        await asyncio.gather(first, *waiting)
        await writer.submit([send()], 10_000)
        assert ends(store) == 5


async def test_one_that_is_larger_than_the_bound_is_taken_when_nothing_waits() -> None:
    async with writing(WatchedStore(), max_waiting=10) as writer:
        await writer.submit([send()], 1_000_000)
        await writer.submit([send()], 1_000_000)


async def test_many_small_operations_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    store = WatchedStore()
    monkeypatch.setattr(writer_module, "MAX_WAITING_OPS", 20)
    async with writing(store) as writer:
        first = await held_up(writer, store)
        waiting = [writer.submit([send()] * 7, 0) for _ in range(3)]
        with pytest.raises(Busy):
            writer.submit([send()], 0)
        store.gate.set()
        await asyncio.gather(first, *waiting)
        await writer.submit([send()], 0)


# --- failure -------------------------------------------------------------------------------------------------------


async def test_a_store_that_fails_answers_all_of_them_and_works_again_when_it_can() -> None:
    engine = FailingEngine(may_pass=True)
    store = KvStore("s", lambda: engine, open_memory().settings)
    async with writing(store) as writer:
        await writer.submit([send("before", "before")])
        engine.fail()
        answers = await asyncio.gather(*(writer.submit([send()]) for _ in range(20)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {StorageFailed}
        assert store.failure() is not None
        with pytest.raises(StorageFailed):
            await writer.submit([send()])
        engine.failing = None
        await writer.submit([send("after", "after")])
        assert store.failure() is None
        assert [store.transaction(gid) is not None for gid in ("before", "after")] == [True, True]
        assert ends(store) == 2


@pytest.mark.parametrize("stays", [True, False])
async def test_a_failed_write_is_told_when_it_turns_out_to_be_there(stays: bool) -> None:
    engine, heard = FailingEngine(may_pass=True), []  # type: ignore[var-annotated]
    engine.stays = stays
    store = KvStore("s", lambda: engine, open_memory().settings)
    async with writing(store, heard=heard) as writer:
        await writer.submit([Send([OutgoingMessage("orders", b"v")], "before", [OutgoingCall("http://svc.example/")])])
        engine.fail()
        with pytest.raises(StorageFailed):
            await writer.submit([send("unknown")])
        with pytest.raises(StorageFailed):
            await writer.submit([send("refused")])
        assert [written.counted["committed"] for written in heard] == [1]
        engine.failing = None
        assert await writer.look(ends) == (2 if stays else 1)  # no write is needed for it
        assert [written.appended for written in heard[1:]] == [{("orders", 1)} if stays else set()]
        assert heard[1].called == heard[0].called  # who knows


async def test_a_failure_that_does_not_pass_stays() -> None:
    engine = FailingEngine(may_pass=False)
    store = KvStore("s", lambda: engine, open_memory().settings)
    async with writing(store) as writer:
        engine.fail()
        with pytest.raises(StorageFailed):
            await writer.submit([send()])
        engine.failing = None
        with pytest.raises(StorageFailed):
            await writer.submit([send()])
        assert store.failure() == "the disk is full"


class PoisonedEngine(MemoryEngine):
    """Stumbles over a unit that has this gid in it."""

    def write(self, changes: Changes) -> None:
        if b"tpoison" in changes.keys["tx"]:
            raise ZeroDivisionError("a bug")
        super().write(changes)


async def test_an_error_of_our_own_fails_the_one_who_met_it_and_nobody_beside() -> None:
    store, heard = WatchedStore(PoisonedEngine()), []  # type: ignore[var-annotated]
    async with writing(store, heard=heard) as writer:
        first = await held_up(writer, store)
        gids = ["a", "poison", "b"]
        futures = [writer.submit([send(gid, gid)]) for gid in gids]
        look = writer.look(lambda store: store.transaction("poison"))
        store.gate.set()
        await first
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert [isinstance(answer, TallystickError) for answer in answers] == [False, True, False]
        assert "nothing was stored" in str(answers[1])
        assert await look is None
        assert [store.transaction(gid) is not None for gid in gids] == [True, False, True]
        await writer.submit([send("after")])
        assert ends(store) == 4
        assert sum(len(written.appended) for written in heard) == 4


# --- the end -------------------------------------------------------------------------------------------------------


async def test_the_end_finishes_what_waits_and_takes_nothing_new() -> None:
    store = WatchedStore()
    async with writing(store) as writer:
        first = await held_up(writer, store)
        waiting = [writer.submit([send()]) for _ in range(10)]
        stopping = asyncio.create_task(writer.stop())
        await asyncio.sleep(0.02)
        with pytest.raises(Draining):
            writer.submit([send()])
        with pytest.raises(Draining):
            writer.look(ends)
        store.gate.set()
        await asyncio.gather(first, *waiting, stopping)
        assert ends(store) == 11


# --- disk space ----------------------------------------------------------------------------------------------------


async def test_a_nearly_full_disk_refuses_new_messages_and_resolves_old_ones(tmp_path: Path) -> None:
    store = WatchedStore()
    async with writing(store) as writer:
        await writer.submit([Prepare(gid, "shop", [OutgoingMessage("orders", b"v")]) for gid in ("a", "b")])
    async with writing(store, SpaceGuard(str(tmp_path), 2**62)) as writer:
        part = PreparePart("p", [OutgoingMessage("orders", b"v")])
        prepare = Prepare("c", "shop", [OutgoingMessage("orders", b"v")])
        answers = await writer.submit([send(), Commit("a"), prepare, Rollback("b"), part, Commit("unknown")])
        words = [None if one is None else one.error for one in answers]  # type: ignore[union-attr]
        assert words == ["storage_full", None, "storage_full", None, "storage_full", "not_found"]
        assert "no new messages until there is room" in answers[0].detail  # type: ignore[union-attr]
        assert ends(store) == 1


async def test_the_reserve_holds_for_callers_with_a_token_too(tmp_path: Path) -> None:
    store = WatchedStore()
    async with writing(store, SpaceGuard(str(tmp_path), 2**62)) as writer:
        (answer,) = await writer.submit([Guarded(send(), ("shop",))])
        assert answer.error == "storage_full"  # type: ignore[union-attr]


async def test_a_broker_that_refuses_new_messages_for_its_reserve_is_not_ready(tmp_path: Path) -> None:
    guard = SpaceGuard(str(tmp_path), 2**62)
    async with writing(WatchedStore(), guard) as writer:
        assert "nearly full" in (writer.failure() or "")


def test_the_reserve_is_left_a_little_above_where_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpaceGuard, "EVERY_SECONDS", -1.0)
    free = 99
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free, f_frsize=1 << 20))
    guard = SpaceGuard(str(tmp_path), 100 << 20)
    assert not guard.enough()
    free = 101
    assert not guard.enough()
    free = 110
    assert guard.enough()
    free = 101
    assert guard.enough()


# --- an engine that has no room --------------------------------------------------------------------------------------


class FullEngine(MemoryEngine):
    """Takes what is small, and the empty unit by which it is opened; refuses what is large while it is full."""

    full = False

    def write(self, changes: Changes) -> None:
        sizes = [len(value) for changed in changes.keys.values() for value in changed.values() if value is not None]
        if self.full and max(sizes, default=0) > 800:
            raise EngineFailed("no room for it", may_pass=True, full=True)
        super().write(changes)


async def test_new_messages_are_refused_until_a_probe_succeeds_and_the_rest_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FullEngine()
    store = WatchedStore(engine)
    with caplog.at_level("WARNING", "tallystick.broker.writer"):
        async with writing(store) as writer:
            await writer.submit([Prepare("half", "shop", [OutgoingMessage("orders", b"v")])])
            engine.full = True
            with pytest.raises(StorageFull, match="no room"):
                await writer.submit([send("v" * 1_000)])
            assert writer.failure() == "no room for it"
            for _ in range(3):  # what it needs room for is not tried, and does not take the rest with it
                refused, committed = await writer.submit([send("small"), Commit("half")])
                assert refused.error == "storage_full"  # type: ignore[union-attr]
                assert committed is None or committed.error is None  # type: ignore[union-attr]
                assert writer.failure() == "no room for it"
                await asyncio.sleep(0.3)  # it is recovered in between, again and again
            assert [record.getMessage() for record in caplog.records] == ["store watched takes no work: no room for it"]
            engine.full = False
            await asyncio.to_thread(eventually, lambda: writer.failure() is None, "a probe succeeds")
            assert (await writer.submit([send("v" * 1_000)]))[0].error is None  # type: ignore[union-attr]
    assert [record.getMessage() for record in caplog.records][1:] == ["store watched works again"]
    assert ends(store) == 2
    assert not [key for area in AREAS for key, _ in engine.scan(area, keys.PROBE, keys.PROBE + b"\xff")]


def test_free_space_is_looked_at_now_and_then_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = os.statvfs

    def counted(path: str) -> os.statvfs_result:
        nonlocal looks
        looks += 1
        return real(path)

    monkeypatch.setattr(os, "statvfs", counted)
    guard = SpaceGuard(str(tmp_path), 0)
    assert all(guard.enough() for _ in range(1_000))
    assert looks <= 2
    assert SpaceGuard(None, 2**62).enough()


def test_free_space_that_comes_back_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpaceGuard, "EVERY_SECONDS", -1.0)
    guard = SpaceGuard(str(tmp_path), 2**62)
    assert not guard.enough()
    guard._min_free = 0
    assert guard.enough()
