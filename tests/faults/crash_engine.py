"""A storage engine whose process dies at a write of the test's choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tallystick.store.kv.engine import Area, Changes
from tallystick.store.memory import MemoryEngine


class Crash(BaseException):
    """Not an Exception: nothing on the way may handle a process that is gone."""


class CrashingEngine:
    """An engine whose process dies at its n-th write (each of them counted since the beginning, over restarts):
    just before it, or just after it and before the answer."""

    remote = False

    def __init__(self, *crash_at: int, after: bool, forgets: int = 0) -> None:
        self.kept = MemoryEngine()
        self.crash_at, self.after, self.forgets = set(crash_at), after, forgets
        self.writes = 0

    def get(self, area: Area, key: bytes) -> bytes | None:
        return self.kept.get(area, key)

    def get_many(self, area: Area, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        return self.kept.get_many(area, keys)

    def scan(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.kept.scan(area, start, end)

    def scan_back(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.kept.scan_back(area, start, end)

    def write(self, changes: Changes) -> None:
        self.writes += 1
        if self.writes in self.crash_at and not self.after:
            raise Crash
        if not self.forgets or self.writes % self.forgets:
            self.kept.write(changes)
        if self.writes in self.crash_at:
            raise Crash

    def close(self) -> None:
        """The data stays."""
