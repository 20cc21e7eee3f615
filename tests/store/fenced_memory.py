"""A fenced server in memory, for what no real one does on demand: lose an answer, carry out a unit an hour later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from tallystick.store.kv.engine import Area, Changes, Found, Wanted
from tallystick.store.memory import MemoryEngine
from tallystick.store.shared.memory import MemoryCluster, MemoryServer
from tallystick.store.shared.server import Fence, ServerAway

Fault = Literal["lost", "lost answer", "late"]
"""`lost`: the question never arrives; `lost answer`: it does; `late`: it will, when the test says `arrive`."""


class FencedMemory(MemoryServer):
    def __init__(self) -> None:
        super().__init__(MemoryCluster(), 0)
        self.cuts = 0
        self.applied: list[tuple[int, int]] = []  # epoch and unit of what was carried out
        self.faults: deque[Fault | None] = deque()  # of the next questions, one each
        self.under_way: list[Callable[[], bool]] = []
        self.pages: list[int] = []  # the rows of each page

    @property
    def kept(self) -> MemoryEngine:
        return self._shard.kept

    @property
    def state(self) -> Fence | None:
        return self._shard.fence if self._shard.fence.epoch else None

    @state.setter
    def state(self, state: Fence | None) -> None:
        self._shard.fence = state or Fence(0, 0, "")

    def _meets(self) -> Fault | None:
        fault = self.faults.popleft() if self.faults else None
        if fault in ("lost", "late"):
            self.trips += 1
        if fault == "lost":
            raise ServerAway("the connection was cut before")
        return fault

    def arrive(self) -> list[bool]:
        """What was late comes in now; whether each was carried out."""
        late, self.under_way = self.under_way, []
        return [one() for one in late]

    def fence(self) -> Fence | None:
        self._meets()
        return super().fence()

    def claim(self, owner: str) -> Fence:
        self._meets()
        return super().claim(owner)

    def look_up(self, wanted: Wanted) -> Found:
        self._meets()
        return super().look_up(wanted)

    def page(
        self, area: Area, start: bytes, end: bytes, limit: int, max_bytes: int, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        self._meets()
        found = super().page(area, start, end, limit, max_bytes, backwards)
        self.pages.append(len(found))
        return found

    def apply(self, epoch: int, unit: int, changes: Changes) -> bool:
        fault = self._meets()
        if fault == "late":
            self.under_way.append(lambda: self._carry_out(epoch, unit, changes))
            raise ServerAway("the connection was cut on the way")
        hit = self._carry_out(epoch, unit, changes)
        if fault == "lost answer":
            raise ServerAway("the connection was cut after")
        return hit

    def _carry_out(self, epoch: int, unit: int, changes: Changes) -> bool:
        hit = super().apply(epoch, unit, changes)
        if hit:
            self.applied.append((epoch, unit))
        return hit

    def cut(self) -> None:
        self.cuts += 1

    def close(self) -> None:
        self.cut()
