"""A shared server in memory: nothing survives the process. For tests of the seam and of what stands on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice

import msgspec

from tallystick.core.clock import SystemClock
from tallystick.core.ids import new_store_id
from tallystick.store.kv import keys
from tallystick.store.kv.engine import Area, Changes, Found, Wanted
from tallystick.store.memory import MemoryEngine
from tallystick.store.shared.registry import Holding, Member, Seen, new_peer_key, wrong_count
from tallystick.store.shared.server import Fence


class _Shard:
    def __init__(self, store_id: str) -> None:
        self.id = store_id
        self.fence = Fence(0, 0, "")
        self.kept = MemoryEngine()


class MemoryCluster:
    """The whole server: its stores, and the `Registry` of those who share them. Only the lock makes it atomic."""

    def __init__(self, stores: int = 1, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or SystemClock().now_ms
        self.lock = threading.Lock()
        self.shards: list[_Shard] = []
        self._members: dict[str, Member] = {}
        self._peer_key = b""
        self.make(stores)

    def make(self, count: int) -> None:
        with self.lock:
            if self.shards and len(self.shards) != count:
                raise wrong_count(len(self.shards), count)
            self.shards = self.shards or [_Shard(new_store_id()) for _ in range(count)]

    def made(self) -> int:
        return len(self.shards)

    def stored_ids(self) -> dict[int, str]:
        with self.lock:
            stored = {number: shard.kept.get("index", keys.STORE_ID) for number, shard in enumerate(self.shards)}
            return {number: name.decode() for number, name in stored.items() if name}

    def server(self, number: int) -> MemoryServer:
        return MemoryServer(self, number)

    def look(self, me: Member) -> Seen:
        with self.lock:
            self._members[me.id] = me
            return Seen(tuple(self._members.values()), tuple(self._holdings()), self._now_ms())

    def _holdings(self) -> list[Holding]:
        shards = enumerate(self.shards)
        return [Holding(number, shard.id, shard.fence.epoch, shard.fence.owner) for number, shard in shards]

    def claim(self, number: int, expected_epoch: int, owner: str) -> int | None:
        with self.lock:
            shard = self.shards[number]
            if shard.fence.epoch != expected_epoch:
                return None
            shard.fence = Fence(expected_epoch + 1, shard.fence.unit, owner)
            return shard.fence.epoch

    def release(self, number: int, epoch: int) -> None:
        with self.lock:
            shard = self.shards[number]
            if shard.fence.epoch == epoch:
                shard.fence = msgspec.structs.replace(shard.fence, owner="")

    def rename(self, number: int, epoch: int, store_id: str) -> bool:
        with self.lock:
            shard = self.shards[number]
            if shard.fence.epoch == epoch:
                shard.id = store_id
            return shard.fence.epoch == epoch

    def forget(self, member_id: str) -> None:
        with self.lock:
            self._members.pop(member_id, None)

    def peer_key(self) -> bytes:
        with self.lock:
            self._peer_key = self._peer_key or new_peer_key()
            return self._peer_key

    def close(self) -> None:
        """The data stays."""


class MemoryServer:
    """One store of a cluster in memory."""

    def __init__(self, cluster: MemoryCluster, number: int) -> None:
        self._lock, self._shard = cluster.lock, cluster.shards[number]
        self.trips = 0

    def create(self) -> None:
        """There are no tables."""

    def fence(self) -> Fence | None:
        with self._lock:
            self.trips += 1
            return self._shard.fence if self._shard.fence.epoch else None

    def claim(self, owner: str) -> Fence:
        with self._lock:
            self.trips += 1
            before = self._shard.fence
            self._shard.fence = Fence(before.epoch + 1, before.unit, owner)
            return self._shard.fence

    def look_up(self, wanted: Wanted) -> Found:
        with self._lock:
            self.trips += 1
            return self._shard.kept.look_up(wanted)

    def page(
        self, area: Area, start: bytes, end: bytes, limit: int, max_bytes: int, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        with self._lock:
            self.trips += 1
            scan = self._shard.kept.scan_back if backwards else self._shard.kept.scan
            found: list[tuple[bytes, bytes]] = []
            size = 0
            for key, value in islice(scan(area, start, end), limit):
                found.append((key, value))
                size += len(value)
                if size >= max_bytes:
                    break
            return found

    def apply(self, epoch: int, unit: int, changes: Changes) -> bool:
        with self._lock:
            self.trips += 1
            fence = self._shard.fence
            if (fence.epoch, fence.unit) != (epoch, unit):
                return False
            self._shard.fence = Fence(epoch, unit + 1, fence.owner)
            self._shard.kept.write(changes)
            return True

    def weaknesses(self) -> list[str]:
        return []

    def cut(self) -> None:
        """There are no connections."""

    def close(self) -> None:
        """The data stays with the cluster."""
