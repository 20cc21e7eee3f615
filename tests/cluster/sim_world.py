"""A world under virtual time: processes that run, sleep and die, and a network between them that does all it may do.

One thread, one random generator, one heap of what happens next: a seed says all. Code that blocks (an engine that waits
for its server) runs in a greenlet, which is put aside until the answer, or the end of its patience, is due.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

TIMED_OUT = object()


class Process:
    """Something that can be stopped for a while, killed, and cut off. It has two clocks: a monotonic one of its own,
    and one on the wall that anybody may set."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.paused_until = 0.0
        self.cut_off: set[str] = set()  # names of processes that it cannot speak with
        self.wall_ahead = 0
        self._began = world.random.randrange(1_000_000)

    def elapsed_ms(self) -> int:
        return self._began + int(self.world.now)

    def now_ms(self) -> int:
        return self.world.engine_ms() + self.wall_ahead

    def meanwhile(self, do: Callable[[], None]) -> None:
        """Do something as soon as the process runs; never, if it is dead."""
        if not self.alive:
            return
        wait = self.paused_until - self.world.now
        if wait > 0:
            self.world.later(wait, lambda: self.meanwhile(do))
        else:
            do()


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0  # milliseconds
        self.calm = False  # whether the network has stopped playing tricks
        self.steps = 0
        self.finished = 0  # how many have done what they had to do
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._hub = getcurrent()
        self._greenlets: list[greenlet] = []
        self._over = False

    def engine_ms(self) -> int:
        """The engine's clock."""
        return 1_700_000_000_000 + int(self.now)

    # --- time ----------------------------------------------------------------------------------------------------

    def later(self, ms: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._coming, (self.now + ms, next(self._order), do))

    def run(self, until: float, wanted: int) -> None:
        """Until so many have finished, or time is up."""
        coming = self._coming
        while coming and self.now <= until and self.finished < wanted:
            self.now, _, do = heapq.heappop(coming)
            self.steps += 1
            do()

    def end(self) -> None:
        """Everybody who still waits for something is told that nothing will come any more."""
        self._over = True
        for waiting in self._greenlets:
            if waiting:
                waiting.throw(GreenletExit)

    # --- what blocks ---------------------------------------------------------------------------------------------

    def start(self, process: Process, work: Callable[[], None]) -> None:
        running = greenlet(work, self._hub)
        self._greenlets.append(running)
        self.later(0, lambda: process.meanwhile(lambda: running.switch()))

    def wait(self, process: Process, begin: Callable[[Callable[[Any], None]], None], patience: float) -> Any:
        """Begin something that will be answered, and wait for that; `TIMED_OUT` if it takes longer."""
        if self._over or not process.alive:
            raise GreenletExit
        waiting = getcurrent()
        told: list[Any] = []

        def tell(answer: Any) -> None:
            if not told:
                told.append(answer)
                # Not here and now: whoever tells may be in a greenlet of its own, and goes on first.
                self.later(0, lambda: process.meanwhile(lambda: waiting.switch(answer)))

        begin(tell)
        self.later(patience, lambda: tell(TIMED_OUT))
        return self._hub.switch()

    def sleep(self, process: Process, ms: float) -> None:
        self.wait(process, lambda tell: None, ms)

    # --- the network ---------------------------------------------------------------------------------------------

    def carry(self, sender: Process, receiver: Process, deliver: Callable[[], None]) -> None:
        """A message: it arrives soon, late, twice, behind later ones, or never."""
        if receiver.name in sender.cut_off or sender.name in receiver.cut_off or self._happens(0.02):
            return
        for _ in range(2 if self._happens(0.02) else 1):
            self.later(self._delay(), lambda: receiver.meanwhile(deliver))

    def _happens(self, chance: float) -> bool:
        return not self.calm and self.random.random() < chance

    def _delay(self) -> float:
        if self._happens(0.04):
            return self.random.uniform(200, 6_000)
        if self._happens(0.08):
            return self.random.uniform(5, 200)
        return self.random.uniform(0.2, 2)

    def ask(self, asker: Process, other: Process, do: Callable[[Callable[[Any], None]], None], patience: float) -> Any:
        """A question and its answer, each a message of its own. `do` answers by calling what it is given."""

        def begin(tell: Callable[[Any], None]) -> None:
            def answer(what: Any) -> None:
                self.carry(other, asker, lambda: tell(what))

            self.carry(asker, other, lambda: do(answer))

        return self.wait(asker, begin, patience)
