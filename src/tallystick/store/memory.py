"""The memory engine: nothing survives. For tests of the rules and of what stands on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from tallystick.core.ids import new_store_id
from tallystick.store.kv.engine import AREAS, Area, Changes, Found, Wanted
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import StoreSettings


class MemoryEngine:
    remote = False

    def __init__(self) -> None:
        self._areas: dict[Area, SortedDict] = {area: SortedDict() for area in AREAS}

    def get(self, area: Area, key: bytes) -> bytes | None:
        value: bytes | None = self._areas[area].get(key)
        return value

    def get_many(self, area: Area, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        return map(self._areas[area].get, keys)

    def look_up(self, wanted: Wanted) -> Found:
        return {area: {key: self._areas[area].get(key) for key in asked} for area, asked in wanted.items()}

    def scan(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        known = self._areas[area]
        # A copy of the keys: an iterator must not break when the batch is written while it is held.
        for key in list(known.irange(start, end, inclusive=(True, False))):
            if key in known:
                yield key, known[key]

    def scan_back(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        known = self._areas[area]
        for key in list(known.irange(start, end, inclusive=(True, False), reverse=True)):
            if key in known:
                yield key, known[key]

    def write(self, changes: Changes) -> None:
        for area, start, end in changes.ranges:
            known = self._areas[area]
            for key in list(known.irange(start, end, inclusive=(True, False))):
                del known[key]
        for area, changed in changes.keys.items():
            known = self._areas[area]
            for key, value in changed.items():
                if value is None:
                    known.pop(key, None)
                else:
                    known[key] = value

    def close(self) -> None:
        """Nothing to give back; the data stays, so that a test can open the same engine again."""


def open_memory(settings: StoreSettings | None = None, engine: MemoryEngine | None = None) -> KvStore:
    kept = engine or MemoryEngine()
    return KvStore(new_store_id(), lambda: kept, settings or StoreSettings())
