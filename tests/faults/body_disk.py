"""A disk under a real store that stops at a step of the test's choice, and what it then holds: after a kill all that
was written, after a power cut only what was synced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from crash_engine import Crash

from tallystick.store import rocksdb, segments
from tallystick.store.rocksdb import RocksEngine


class Steps:
    """Counts the steps of the way of a body to the disk, and dies at one of them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.crash_at = 0

    def step(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.crash_at:
            raise Crash(name)


class BodyDisk:
    """Stands before the calls that `segments` makes, and knows what of each file is durable."""

    def __init__(self, directory: Path, steps: Steps) -> None:
        self.directory, self.steps = directory, steps
        self.synced: dict[str, int] = {}  # bytes of each segment
        self.named: set[str] = set()  # segments whose name is durable
        self.log: dict[str, int] = {}  # bytes of RocksDB's logs
        self.removed = directory.parent / f"{directory.name}-removed"  # what came undurably out of its directory
        self.removed.mkdir(exist_ok=True)
        self.skip_sync = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(segments, "os", self)
        monkeypatch.setattr(segments, "sync_directory", self.sync_directory)
        monkeypatch.setattr(rocksdb, "Rdict", self.open_tree)
        monkeypatch.setattr(segments.Segments, "remove", self._removing(segments.Segments.remove))

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # --- what segments calls -------------------------------------------------------------------------------------

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        if not flags & os.O_CREAT:
            return os.open(path, flags, mode)
        self.steps.step("before the file is made")
        file = os.open(path, flags, mode)
        self.steps.step("after the file is made")
        return file

    def write(self, file: int, content: memoryview) -> int:
        """In pieces, so that there is something to be torn."""
        written = os.write(file, content[:10_000])
        self.steps.step("after some bytes")
        return written

    def fdatasync(self, file: int) -> None:
        self.steps.step("before fdatasync")
        if not self.skip_sync:
            os.fdatasync(file)
            name = Path(os.readlink(f"/proc/self/fd/{file}")).name
            self.synced[name] = os.fstat(file).st_size
        self.steps.step("after fdatasync")

    def sync_directory(self, directory: Path) -> None:
        self.steps.step("before the directory is synced")
        self.named = {path.name for path in directory.iterdir()}
        for path in self.removed.iterdir():
            path.unlink()
        self.steps.step("after the directory is synced")

    def _removing(self, really: Any) -> Any:
        def remove(found: segments.Segments, number: int) -> None:
            self.steps.step("before unlink")
            path = self.directory / "bodies" / f"{number:08}.segment"
            shutil.copy(path, self.removed)
            really(found, number)
            self.steps.step("after unlink")

        return remove

    # --- the tree ------------------------------------------------------------------------------------------------

    def open_tree(self, *given: Any, **named: Any) -> Any:
        return _Tree(rocksdb_rdict(*given, **named), self)

    def flushed(self) -> None:
        self.log = {path.name: path.stat().st_size for path in (self.directory / "db").glob("*.log")}

    # --- afterwards ----------------------------------------------------------------------------------------------

    def left(self, place: Path, power_cut: bool) -> Path:
        """A copy of what is on the disk."""
        shutil.copytree(self.directory, place)
        if power_cut:
            for path in (place / "bodies").iterdir():
                if path.name not in self.named:
                    path.unlink()
                else:
                    os.truncate(path, self.synced.get(path.name, 0))
            for path in self.removed.iterdir():
                shutil.copy(path, place / "bodies")
            for path in (place / "db").glob("*.log"):
                os.truncate(path, self.log.get(path.name, 0))
        return place


rocksdb_rdict = rocksdb.Rdict


class _Tree:
    def __init__(self, tree: Any, disk: BodyDisk) -> None:
        self._tree, self._disk = tree, disk
        disk.flushed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    def write(self, batch: Any) -> None:
        self._disk.steps.step("before the tree is written")
        self._tree.write(batch)
        self._disk.steps.step("after the tree is written")

    def flush_wal(self, sync: bool) -> None:
        self._disk.steps.step("before the tree is flushed")
        self._tree.flush_wal(sync)
        self._disk.flushed()
        self._disk.steps.step("after the tree is flushed")


def removed_now(engine: RocksEngine) -> None:
    """What the thread beside does from time to time, now and here."""
    engine._remove_dead_segments()
