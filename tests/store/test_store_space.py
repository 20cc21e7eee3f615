"""Segments go when nothing in them is wanted any more, whoever is reading; and never before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from stored_columns import ROWS, committed, prepared, segments, shown, values_of
from tallystick.core.errors import NotFound, OffsetOutOfRange
from tallystick.core.ops import DropParts
from tallystick.store import rocksdb
from tallystick.store import segments as segments_module
from tallystick.store.protocol import DeleteTopic, ExpireParts, PutTopic, TrimTo, TrimTopics
from tallystick.store.rocksdb import RocksStore, open_rocksdb

NOW = 1_700_000_000_000
LATER = NOW + 10**12


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rocksdb, "RECLAIM_SECONDS", 0.01)
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES", 10_000)  # one for each half, or for both
    return tmp_path / "data"


@pytest.fixture
def store(place: Path) -> Iterator[RocksStore]:
    made = open_rocksdb(place)
    try:
        made.write([PutTopic("gone", 1), PutTopic("kept", 1)], NOW)
        yield made
    finally:
        made.close()


def lay(store: RocksStore, topic: str, *names: str, commit: int = 0) -> None:
    store.write([prepared(topic, name) for name in names], NOW)
    if commit:
        store.write([committed(commit, *names)], NOW)


@pytest.mark.parametrize(
    ("end", "now", "commit"),
    [
        (TrimTo("gone", {0: 2 * ROWS}, 1_000), NOW, 1),
        (TrimTopics(1_000), LATER, 1),
        (DeleteTopic("gone"), NOW, 1),
        (DeleteTopic("gone"), NOW, 0),
        (DropParts(["g1", "g2"]), NOW, 0),
        (ExpireParts(100), LATER, 0),
    ],
    ids=["trimmed", "outlived", "deleted", "deleted before the commit", "dropped", "expired"],
)
def test_what_nobody_wants_any_more_is_given_back(
    store: RocksStore, place: Path, end: Any, now: int, commit: int
) -> None:
    store.write([PutTopic("kept", 1, 10**15)], NOW)
    lay(store, "gone", "g1", "g2", commit=commit)
    dead = set(segments(place))
    assert len(dead) >= 2
    lay(store, "kept", "k1", commit=2)
    living = set(segments(place)) - dead
    store.write([end], now)
    # The last one before the living may hold the beginning of these.
    eventually(lambda: len(dead & set(segments(place))) <= 1, "the segments are removed")
    assert living <= set(segments(place))
    assert shown(store)["kept"] == sorted(values_of("kept", "k1"))


def test_what_is_trimmed_soon_after_the_last_time_is_given_back_as_well(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only when something else is trimmed one day."""
    monkeypatch.setattr(rocksdb, "RECLAIM_SECONDS", 0.5)
    store = open_rocksdb(place)
    try:
        store.write([PutTopic("gone", 1)], NOW)
        for version, name in enumerate(("g1", "g2", "g3"), 1):
            lay(store, "gone", name, commit=version)
            store.write([TrimTo("gone", {0: version * ROWS}, 1_000)], NOW)
        eventually(lambda: len(segments(place)) <= 1, "the segments are removed")
    finally:
        store.close()


def test_the_segment_in_use_goes_too_when_nothing_in_it_is_wanted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk nothing is appended to it any more, and it would never be full."""
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES", 10**9)
    store = open_rocksdb(place)
    try:
        for version, name in enumerate(("g1", "g2"), 1):
            store.write([PutTopic("gone", 1)], NOW)
            lay(store, "gone", name, commit=version)
            assert len(segments(place)) == 1
            store.write([DeleteTopic("gone")], NOW)
            eventually(lambda: not segments(place), "the segment in use is removed")
        store.write([PutTopic("kept", 1)], NOW)
        lay(store, "kept", "k1", commit=3)
        assert shown(store)["kept"] == sorted(values_of("kept", "k1"))
    finally:
        store.close()


def test_what_a_crash_has_left_is_removed_at_the_next_start(place: Path) -> None:
    open_rocksdb(place).close()
    left = place / "bodies" / "00000007.segment"
    left.write_bytes(b"half a body")
    again = open_rocksdb(place)
    try:
        eventually(lambda: not left.exists(), "it is removed")
        again.write([PutTopic("gone", 1)], NOW)
        lay(again, "gone", "g1", commit=1)
        assert shown(again)["gone"] == sorted(values_of("gone", "g1"))
    finally:
        again.close()


def test_a_reader_gets_what_is_there_or_is_told_that_it_is_gone(store: RocksStore, place: Path) -> None:
    """Never that it is damaged, however the segments go under its hands."""
    rounds, seen, wrong = 40, [0], []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                start = store.topics()[0].starts[0]
                seen[0] += len(store.read("gone", 0, start, 10_000, 10**8).chunks)
            except (OffsetOutOfRange, NotFound):
                continue
            except Exception as error:
                wrong.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for version in range(1, rounds + 1):
            lay(store, "gone", f"g{version}", commit=version)
            if version > 2:
                store.write([TrimTo("gone", {0: (version - 2) * ROWS}, 1_000)], NOW)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert seen[0] > 0
    eventually(lambda: len(segments(place)) <= 6, "what was trimmed is removed")
    assert shown(store)["gone"] == sorted(
        value for version in (rounds - 1, rounds) for value in values_of("gone", f"g{version}")
    )
