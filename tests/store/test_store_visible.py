"""Durable before visible: what another thread sees of a store while the writer's unit is on its way, or has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import NotFound, OffsetOutOfRange, StorageFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Check, Prepare, Send
from tallystick.core.token_records import TokenRecord
from tallystick.store.kv.engine import Area, Changes, Engine, EngineFailed
from tallystick.store.kv.store import KvStore
from tallystick.store.memory import MemoryEngine
from tallystick.store.protocol import (
    DeleteTopic,
    DropToken,
    PutToken,
    PutTopic,
    StoreOp,
    StoreSettings,
    Subscribe,
    TrimTo,
)
from tallystick.store.rocksdb import RocksEngine


class HeldEngine:
    """An engine whose writes can be seen, as before an fsync, while `after` makes up its mind about them."""

    remote = False

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        self._open = open_engine
        self.kept = open_engine()
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def get(self, area: Area, key: bytes) -> bytes | None:
        return self.kept.get(area, key)

    def get_many(self, area: Area, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        return self.kept.get_many(area, keys)

    def scan(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.kept.scan(area, start, end)

    def scan_back(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.kept.scan_back(area, start, end)

    def write(self, changes: Changes) -> None:
        self.before()
        self.kept.write(changes)
        self.after()

    def close(self) -> None:
        """Opened again by `again`, with what it held."""

    def again(self) -> HeldEngine:
        self.before = self.after = lambda: None
        self.kept.close()
        self.kept = self._open()
        return self


@pytest.fixture(params=("memory", "rocksdb"))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HeldEngine]:
    memory = MemoryEngine()
    made = HeldEngine(lambda: memory if request.param == "memory" else RocksEngine(tmp_path / "db"))
    yield made
    made.kept.close()


@pytest.fixture
def store(engine: HeldEngine) -> KvStore:
    """A store with one topic of two queues that holds ten messages in its first, two chunks of five."""
    made = KvStore("store", lambda: engine, StoreSettings(default_queues=2))
    made.write([PutTopic("orders", 2), PutToken(token("old"))], 1)
    for _ in range(2):
        made.write([Send([OutgoingMessage("orders", b"v", "d") for _ in range(5)])], 2)
    return made


def seen(store: KvStore) -> dict[str, Any]:
    """All that a thread beside the writer may ask for."""
    views = {view.name: view for view in store.topics()}
    assert all(store.topic(name) == view for name, view in views.items())
    slices = {
        (name, queue): store.read(name, queue, view.starts[queue], 1_000, 10**6)
        for name, view in views.items()
        for queue in range(view.queues)
    }
    return {
        "topics": views,
        "channels": store.channels(),
        "tokens": store.tokens(),
        "slices": slices,
        "offsets": {name: store.offsets_at(name, 2) for name in views},
    }


def token(name: str) -> TokenRecord:
    return TokenRecord(name, name, "digest", (), 1)


def prepare(gid: str) -> Prepare:
    return Prepare(gid, "shop", [OutgoingMessage("prepared", b"v")], Check("url", "http://shop.example/check"))


UNITS: dict[str, list[StoreOp]] = {
    "a new topic": [PutTopic("bills")],
    "a new topic with messages": [Send([OutgoingMessage("bills", b"v")])],
    "a topic that is made by a prepare, and its channel": [prepare("t1")],
    "more queues and another retention": [PutTopic("orders", 4, 5_000)],
    "messages of a topic that is there": [
        Send([OutgoingMessage("orders", b"v", "d"), OutgoingMessage("orders", b"v")])
    ],
    "a new token": [PutToken(token("new"))],
    "a revoked token": [DropToken("old")],
    "all of it": [prepare("t1"), PutTopic("orders", 3), Send([OutgoingMessage("orders", b"v")]), PutTopic("bills", 1)],
}
# What a unit removes cannot be read while it is under way, but its topic and its start are still there.
REMOVALS: dict[str, list[StoreOp]] = {
    "a deleted topic": [DeleteTopic("orders")],
    "a topic that is deleted and made again": [DeleteTopic("orders"), PutTopic("orders", 1)],
    "a trimmed queue": [TrimTo("orders", {0: 5}, 10)],
}


def in_memory(store: KvStore) -> tuple[Any, Any, Any]:
    return {view.name: view for view in store.topics()}, store.channels(), store.tokens()


class Writing:
    """A unit that another thread writes, held up when the engine shows it and nobody may call it durable yet."""

    def __init__(self, store: KvStore, engine: HeldEngine, ops: list[StoreOp]) -> None:
        self._at_it, self._go_on = threading.Event(), threading.Event()
        engine.after = self._hold
        self._thread = threading.Thread(target=store.write, args=(ops, 3))

    def _hold(self) -> None:
        self._at_it.set()
        assert self._go_on.wait(20)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._at_it.wait(20)

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join()


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_on_its_way_is_seen_by_nobody_and_then_by_everybody(
    store: KvStore, engine: HeldEngine, unit: str
) -> None:
    before = seen(store)
    with Writing(store, engine, UNITS[unit]):
        assert seen(store) == before
    after = seen(store)
    assert after != before
    assert after == seen(KvStore("again", lambda: engine.again(), store.settings))


@pytest.mark.parametrize("unit", REMOVALS)
def test_what_a_unit_on_its_way_removes_is_gone_with_its_end(store: KvStore, engine: HeldEngine, unit: str) -> None:
    before = in_memory(store)
    with Writing(store, engine, REMOVALS[unit]):
        assert in_memory(store) == before
    after = in_memory(store)
    assert after != before
    assert after == in_memory(KvStore("again", lambda: engine.again(), store.settings))


def test_nobody_reads_past_what_is_being_trimmed(store: KvStore, engine: HeldEngine) -> None:
    with Writing(store, engine, [TrimTo("orders", {0: 5}, 10)]):
        with pytest.raises(OffsetOutOfRange, match="holds 5 to 10"):
            store.read("orders", 0, 0, 1_000, 10**6)
        assert store.read("orders", 0, 5, 1_000, 10**6).next == 10
    with pytest.raises(OffsetOutOfRange, match="holds 5 to 10"):
        store.read("orders", 0, 0, 1_000, 10**6)


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("unit", [*UNITS, *REMOVALS])
def test_a_unit_whose_write_failed_is_not_seen_until_the_store_knows(
    store: KvStore, engine: HeldEngine, unit: str, stays: bool
) -> None:
    """Whether it stayed on the disk or not: that is known when the engine has been opened anew."""

    def fail() -> None:
        raise EngineFailed("the disk is full", may_pass=True)

    before = in_memory(store)
    if stays:
        engine.after = fail
    else:
        engine.before = fail
    with pytest.raises(StorageFailed):
        store.write({**UNITS, **REMOVALS}[unit], 3)
    assert in_memory(store) == before
    store._open_engine = engine.again
    assert store.recover()
    assert (in_memory(store) == before) is not stays


def test_a_failed_topic_is_nowhere(store: KvStore, engine: HeldEngine) -> None:
    def fail() -> None:
        raise EngineFailed("the disk is full", may_pass=True)

    engine.before = fail
    with pytest.raises(StorageFailed):
        store.write([PutTopic("bills"), Subscribe("paid", "http://shop.example/")], 3)
    assert store.topic("bills") is None
    for look in (lambda: store.read("bills", 0, 0, 1, 1), lambda: store.offsets_at("bills", 0)):
        with pytest.raises(NotFound):
            look()
    with pytest.raises(StorageFailed):
        store.call_topics()


def test_a_unit_that_met_an_error_of_ours_leaves_everything_as_it_was(store: KvStore, engine: HeldEngine) -> None:
    def fail() -> None:
        raise RuntimeError("not an engine's word")

    before = seen(store)
    engine.before = fail
    with pytest.raises(RuntimeError):
        store.write(UNITS["all of it"], 3)
    assert seen(store) == before
    engine.before = lambda: None
    store.write(UNITS["all of it"], 4)
    assert seen(store) != before


def test_a_topic_that_is_made_again_is_never_missing(store: KvStore) -> None:
    missing: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            if store.topic("orders") is None or len(store.topics()) != 1:
                missing.append(1)

    thread = threading.Thread(target=watch)
    thread.start()
    for number in range(50):
        store.write([DeleteTopic("orders"), PutTopic("orders", 1 + number % 3)], 3 + number)
    done.set()
    thread.join()
    assert not missing


def test_what_a_unit_costs_to_show_does_not_grow_with_the_topics(
    store: KvStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.store.kv import visible

    store.write([PutTopic(f"t{number}", 1) for number in range(100)], 3)
    shown: list[str] = []
    right = visible.show
    monkeypatch.setattr(visible, "show", lambda catalog, topic: shown.append(topic.name) or right(catalog, topic))
    store.write([Send([OutgoingMessage("t7", b"v"), OutgoingMessage("t7", b"v"), OutgoingMessage("t8", b"v")])], 4)
    assert sorted(shown) == ["t7", "t8"]
    shown.clear()
    store.write([prepare("t1")], 5)
    store.write([prepare("t2")], 6)
    assert shown == ["prepared"]
