"""A directory of format 1 is read as it is, and marked before anything is added that older versions do not know."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from old_directory import LARGE, make_old
from stored_columns import ROWS, committed, prepared, segments, shown, values_of
from tallystick.core.errors import DataDirectoryError
from tallystick.store import directory as directory_module
from tallystick.store.directory import DataDirectory
from tallystick.store.protocol import PutTopic, TrimTo
from tallystick.store.rocksdb import RocksStore, open_rocksdb

NOW = 1_700_000_000_000


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, list[bytes]]:
    place = tmp_path / "data"
    return place, make_old(place, "t", NOW)


def marker(place: Path) -> dict[str, object]:
    known: dict[str, object] = json.loads((place / "format.json").read_text())
    return known


def test_an_old_directory_is_read_added_to_and_trimmed(old: tuple[Path, list[bytes]]) -> None:
    place, values = old
    before = marker(place)
    assert before["format"] == 1
    store = open_rocksdb(place)
    try:
        assert marker(place) == {**before, "format": 2}
        assert shown(store) == {"t": sorted(values)}
        store.write([prepared("t", "new"), committed(2, "new")], NOW)
        both = {"t": sorted([*values, *values_of("t", "new")])}
        assert shown(store) == both
        store = reopened(store, place)
        assert shown(store) == both
        assert len(segments(place)) == 1
        # Away with the old body, and then with all that is old.
        store.write([TrimTo("t", {0: 10 + LARGE}, 1_000)], NOW)
        assert shown(store) == {"t": sorted([*values[10 + LARGE :], *values_of("t", "new")])}
        store.write([TrimTo("t", {0: 20 + LARGE}, 1_000)], NOW)
        assert shown(store) == {"t": sorted(values_of("t", "new"))}
        store.write([TrimTo("t", {0: 20 + LARGE + ROWS}, 1_000)], NOW)
        assert shown(store) == {"t": []}
    finally:
        store.close()


def reopened(store: RocksStore, place: Path) -> RocksStore:
    store.close()
    return open_rocksdb(place)


def test_the_mark_is_durable_before_the_store_is_opened(
    old: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = old
    synced: list[str] = []
    really = os.fsync

    def noting(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        really(handle)

    monkeypatch.setattr(os, "fsync", noting)
    DataDirectory(place).close()
    assert synced == [str(place / "format.json.new"), str(place)]
    assert not (place / "bodies").exists()
    synced.clear()
    DataDirectory(place).close()
    assert synced == [], "what is marked is not marked again"


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_crash_while_it_is_marked_leaves_a_directory_that_opens(
    old: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    place, values = old

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*((os, "fsync") if step == "fsync" else (Path, "rename")), crash)
        with pytest.raises(KeyboardInterrupt):
            DataDirectory(place)
    assert marker(place)["format"] == 1
    store = open_rocksdb(place)
    try:
        assert shown(store) == {"t": sorted(values)}
    finally:
        store.close()
    assert marker(place)["format"] == 2


def test_a_disk_that_cannot_be_written_is_told(old: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(DataDirectoryError, match="No space left"):
            DataDirectory(old[0])
    DataDirectory(old[0]).close()


def test_an_older_version_leaves_a_new_directory_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_rocksdb(tmp_path)
    store.write([PutTopic("t", 1), prepared("t", "new")], NOW)
    store.close()
    monkeypatch.setattr(directory_module, "FORMAT", 1)
    monkeypatch.setattr(directory_module, "_READ", (1,))
    with pytest.raises(DataDirectoryError, match="has format 2; this version of Tallystick reads format 1"):
        open_rocksdb(tmp_path)
