"""Memory stores with a hand on them: to hold them up, to make them fail, to count what they do."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from tallystick.store.kv.engine import Area, Changes, EngineFailed
from tallystick.store.kv.store import KvStore
from tallystick.store.memory import MemoryEngine
from tallystick.store.protocol import StoreOp, StoreSettings, Written


class WatchedStore(KvStore):
    """Counts its writes, and holds each one up while `gate` is closed."""

    def __init__(self, engine: MemoryEngine | None = None, settings: StoreSettings | None = None) -> None:
        kept = engine or MemoryEngine()
        self.writes: list[int] = []  # the number of operations in each
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        super().__init__("watched", lambda: kept, settings or StoreSettings())

    def write(self, ops: Sequence[StoreOp], now: int) -> Written:
        self.writes.append(len(ops))
        self.entered.set()
        assert self.gate.wait(20)
        return super().write(ops, now)


class FailingEngine(MemoryEngine):
    """Does not write while `failing` is set; whether that may pass is up to the test."""

    def __init__(self, may_pass: bool) -> None:
        super().__init__()
        self.may_pass = may_pass
        self.stays = False  # whether what it fails to write is there all the same
        self.failing: Exception | None = None

    def fail(self) -> None:
        self.failing = EngineFailed("the disk is full", self.may_pass)

    def write(self, changes: Changes) -> None:
        if self.failing is None or self.stays:
            super().write(changes)
        if self.failing is not None:
            raise self.failing

    def get(self, area: Area, key: bytes) -> bytes | None:
        # Opening it anew reads the catalog: a disk that is still broken does not let that happen either.
        if isinstance(self.failing, EngineFailed):
            raise self.failing
        return super().get(area, key)


class CountingEngine(MemoryEngine):
    """Counts the keys that are looked up, walked over and written."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.scanned = self.written = 0

    @property
    def touched(self) -> tuple[int, int, int]:
        return self.gets, self.scanned, self.written

    def get(self, area: Area, key: bytes) -> bytes | None:
        self.gets += 1
        return super().get(area, key)

    def get_many(self, area: Area, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        self.gets += len(keys)
        return super().get_many(area, keys)

    def scan(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for entry in super().scan(area, start, end):
            self.scanned += 1
            yield entry

    def scan_back(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for entry in super().scan_back(area, start, end):
            self.scanned += 1
            yield entry

    def write(self, changes: Changes) -> None:
        self.written += sum(len(changed) for changed in changes.keys.values()) + len(changes.ranges)
        super().write(changes)
