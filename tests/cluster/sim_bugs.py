"""Bugs, on purpose: nodes that are built wrongly, each in a way that somebody might. The simulation must find them."""

from __future__ import annotations

from typing import Any

import msgspec
from sim_nodes import Build
from sim_world import Process

from tallystick.broker.cluster.clock import EngineClock
from tallystick.core.clock import Clock
from tallystick.store.kv import keys
from tallystick.store.kv.engine import Changes
from tallystick.store.kv.leases import Lease
from tallystick.store.kv.store import KvStore
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.memory import MemoryCluster, MemoryServer
from tallystick.store.shared.server import Fence, ServerAway, SharedServer


class _NoFence(Build):
    """The server carries out every unit, whoever sends it and whenever it arrives."""

    class Server(MemoryServer):
        def apply(self, epoch: int, unit: int, changes: Changes) -> bool:
            fence = self._shard.fence
            return super().apply(fence.epoch, fence.unit, changes)

    class Engine(SharedEngine):
        def _own_fence(self) -> Fence:
            fence = self._server.fence()
            assert fence is not None
            return fence

    def server(self, cluster: MemoryCluster, number: int) -> Any:
        return self.Server(cluster, number)

    def engine(self, server: SharedServer, epoch: int) -> SharedEngine:
        return self.Engine(server, epoch)


class _WallClock(Build):
    """Leases end by the clock of the machine that happens to own the store."""

    def clock(self, process: Process, learnt: EngineClock) -> Clock:
        return process


class _EarlyAnswer(Build):
    """A write without an answer is taken for done."""

    class Engine(SharedEngine):
        def write(self, changes: Changes) -> None:
            try:
                written = self._server.apply(self._epoch, self._unit, changes)
            except ServerAway:
                written = True
            if written:
                self._unit += 1
            else:
                super().write(changes)

    def engine(self, server: SharedServer, epoch: int) -> SharedEngine:
        return self.Engine(server, epoch)


class _NoEmptyUnit(Build):
    """Whoever opens a store writes nothing: a unit that was given up may come in behind what was read."""

    class Engine(SharedEngine):
        def _begin(self, reopened: bool) -> int:
            return self._ask(self._own_fence).unit

    def engine(self, server: SharedServer, epoch: int) -> SharedEngine:
        return self.Engine(server, epoch)


class _UnnumberedUnits(Build):
    """The server looks at the owner alone: a unit that comes twice is carried out twice."""

    class Server(MemoryServer):
        def apply(self, epoch: int, unit: int, changes: Changes) -> bool:
            return super().apply(epoch, max(unit, self._shard.fence.unit), changes)

    def server(self, cluster: MemoryCluster, number: int) -> Any:
        return self.Server(cluster, number)


class _ForgottenLease(Build):
    """Whoever takes a store over takes back what the owner before has lent."""

    def opened(self, store: KvStore, now: int) -> None:
        changes = Changes()
        index = changes.keys["index"]
        for key, value in store._engine.scan("index", *keys.LEASE.all):
            lease = msgspec.msgpack.decode(value, type=Lease)
            gt, queue, offset = _parts(key)
            index[keys.VISIBLE.key(gt, lease.visible_at, queue, offset)] = None
            lease.visible_at = now
            index[key] = msgspec.msgpack.encode(lease)
            index[keys.VISIBLE.key(gt, now, queue, offset)] = b""
        if index:
            store._engine.write(changes)


def _parts(key: bytes) -> tuple[bytes, int, int]:
    return key[1:-10], int.from_bytes(key[-10:-8]), keys.LEASE.offset(key)


class _ImpatientSender(Build):
    """A client sends the next message of a key while the one before is in doubt: that one may still come, behind it."""

    impatient_sender = True


BUGS: dict[str, type[Build]] = {
    "no_fence": _NoFence,
    "wall_clock": _WallClock,
    "early_answer": _EarlyAnswer,
    "forgotten_lease": _ForgottenLease,
    "impatient_sender": _ImpatientSender,
    "no_empty_unit": _NoEmptyUnit,
    "unnumbered_units": _UnnumberedUnits,
}
