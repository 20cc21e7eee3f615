"""A fenced server in memory, for what no real one does on demand: lose an answer, carry out a unit an hour later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Literal

from tallystick.store.kv.engine import Area, Changes, Found, Wanted
from tallystick.store.memory import MemoryEngine
from tallystick.store.shared.server import Fence, ServerAway

Fault = Literal["lost", "lost answer", "late"]
"""`lost`: the question never arrives; `lost answer`: it does; `late`: it will, when the test says `arrive`."""


class FencedMemory:
    def __init__(self) -> None:
        self.kept = MemoryEngine()
        self.state: Fence | None = None
        self.trips = 0
        self.cuts = 0
        self.applied: list[tuple[int, int]] = []  # epoch and unit of what was carried out
        self.faults: deque[Fault | None] = deque()  # of the next questions, one each
        self.under_way: list[Callable[[], bool]] = []
        self.pages: list[int] = []  # the rows of each page

    def _meets(self) -> Fault | None:
        self.trips += 1
        fault = self.faults.popleft() if self.faults else None
        if fault == "lost":
            raise ServerAway("the connection was cut before")
        return fault

    def arrive(self) -> list[bool]:
        """What was late comes in now; whether each was carried out."""
        late, self.under_way = self.under_way, []
        return [one() for one in late]

    def create(self) -> None:
        """Nothing to make."""

    def fence(self) -> Fence | None:
        self._meets()
        return self.state

    def claim(self, owner: str) -> Fence:
        self._meets()
        known = self.state or Fence(0, 0, "")
        self.state = Fence(known.epoch + 1, known.unit, owner)
        return self.state

    def look_up(self, wanted: Wanted) -> Found:
        self._meets()
        return self.kept.look_up(wanted)

    def page(
        self, area: Area, start: bytes, end: bytes, limit: int, max_bytes: int, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        self._meets()
        found, size = [], 0
        for key, value in islice((self.kept.scan_back if backwards else self.kept.scan)(area, start, end), limit):
            if size >= max_bytes:
                break
            found.append((key, value))
            size += len(value)
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
        if self.state is None or (self.state.epoch, self.state.unit) != (epoch, unit):
            return False
        self.kept.write(changes)
        self.applied.append((epoch, unit))
        self.state = Fence(epoch, unit + 1, self.state.owner)
        return True

    def weaknesses(self) -> list[str]:
        return []

    def cut(self) -> None:
        self.cuts += 1

    def close(self) -> None:
        self.cut()
