"""The ordered key-value engine that the store's rules stand on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from tallystick.core.errors import Moved, StorageFailed, StorageFull, TallystickError

Area = Literal["tx", "log", "index", "body"]
AREAS: tuple[Area, ...] = ("tx", "log", "index", "body")
Wanted = Mapping[Area, Collection[bytes]]
Found = dict[Area, dict[bytes, bytes | None]]


class Changes:
    """One atomic unit of changes: keys to set, keys to delete (`None`), ranges to delete first."""

    __slots__ = ("keys", "ranges")

    def __init__(self) -> None:
        self.keys: dict[Area, dict[bytes, bytes | None]] = {area: {} for area in AREAS}
        self.ranges: list[tuple[Area, bytes, bytes]] = []

    def empty(self) -> bool:
        return not self.ranges and not any(self.keys.values())


class EngineFailed(Exception):
    """The engine could not write.

    Args:
        may_pass: The cause can go away without a restart: the disk has room again, the server is back.
        full: The engine refused the write because it has no room. Nothing of the write was stored.
    """

    def __init__(self, reason: str, may_pass: bool, full: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_pass = may_pass
        self.full = full

    def told(self) -> TallystickError:
        """The error that callers get."""
        if self.full:
            return StorageFull(self.reason)
        return StorageFailed(self.reason) if self.may_pass else StorageFailed(self.reason, stopped=True)


class Superseded(EngineFailed):
    """The store has another owner now: the engine refused a write of an older epoch. That never passes."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, may_pass=False)

    def told(self) -> TallystickError:
        return Moved(self.reason)


class Engine(Protocol):
    """Sorted bytes in four areas. Values of "body" are large, are written once, and carry a checksum of their own that
    whoever reads them verifies: an engine may keep them where it likes, and need not look at them. One that is far away
    raises `StorageFailed` if a look gets no answer."""

    @property
    def remote(self) -> bool:
        """Whether every look is a round trip, so that it pays to foresee them."""

    def get(self, area: Area, key: bytes) -> bytes | None: ...

    def get_many(self, area: Area, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        """The values of keys that are in order, one by one. Keys that lie close together cost less than by `get`."""

    def look_up(self, wanted: Wanted) -> Found:
        """The values of keys of several areas, in one round trip."""

    def scan(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, end), in order."""

    def scan_back(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, end), from the highest down."""

    def write(self, changes: Changes) -> None:
        """Apply all changes as one unit and return once they are durable."""

    def close(self) -> None: ...
