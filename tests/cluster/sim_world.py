"""A world under virtual time: processes that run, sleep and die, and a network between them that does all it may do.

One thread, one random generator, one heap of what happens next: a seed says all. Code that blocks (an engine that waits
for its server) runs in a greenlet, which is put aside until the answer, or the end of its patience, is due.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet
from msgspec import Struct

TIMED_OUT = object()


class Line(Struct):
    """How often a message is lost, comes twice, much too late, or a little late and behind others."""

    lost: float = 0.02
    twice: float = 0.02
    late: float = 0.04
    slow: float = 0.08


USUAL, CALM = Line(), Line(0, 0, 0, 0)


class Process:
    """Something that can be stopped for a while, killed, and cut off. It has two clocks: a monotonic one of its own,
    and one on the wall that anybody may set."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.paused_until = 0.0
        self.cut_off: set[str] = set()  # names of processes that it cannot speak with
        self.lines: dict[str, Line] = {}  # to those with whom it speaks over a worse line than usual
        self.writes_wait_until = 0.0
        self.wall_ahead = 0
        self._began = world.random.randrange(1_000_000)

    def elapsed_ms(self) -> int:
        return self._began + int(self.world.now)

    def now_ms(self) -> int:
        return self.world.engine_ms() + self.wall_ahead


class _Waiting:
    """A greenlet that waits to be told something. What comes after the first word is not heard."""

    __slots__ = ("_process", "_told", "_waiting", "_world")

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process
        self._waiting = getcurrent()
        self._told = False

    def answer(self, patience: float) -> Any:
        self._world.later(patience, self._give_up, self._process)
        return self._world.hub.switch()

    def tell(self, answer: Any) -> None:
        if self._told:
            return
        self._told = True
        if getcurrent() is self._world.hub:
            self._waiting.switch(answer)
        else:  # whoever tells is in a greenlet of its own, and goes on first
            self._world.later(0, partial(self._waiting.switch, answer), self._process)

    def _give_up(self) -> None:
        self.tell(TIMED_OUT)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._draw = self.random.random
        self.now = 0.0  # milliseconds
        self.calm = False  # whether the network has stopped playing tricks
        self.steps = 0
        self.finished = 0  # how many have done what they had to do
        self.hub = getcurrent()
        self._coming: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self._order = 0
        self._greenlets: list[greenlet] = []
        self._over = False

    def engine_ms(self) -> int:
        """The engine's clock."""
        return 1_700_000_000_000 + int(self.now)

    # --- time ----------------------------------------------------------------------------------------------------

    def later(self, ms: float, do: Callable[[], None], process: Process | None = None) -> None:
        """What a process does it does as soon as it runs; never, if it is dead by then."""
        self._order += 1
        heapq.heappush(self._coming, (self.now + ms, self._order, process, do))

    def run(self, until: float, wanted: int) -> None:
        """Until so many have finished, or time is up."""
        coming = self._coming
        while coming and self.now <= until and self.finished < wanted:
            self.now, _, process, do = heapq.heappop(coming)
            self.steps += 1
            if process is None:
                do()
            elif process.paused_until > self.now:
                self.later(process.paused_until - self.now, do, process)
            elif process.alive:
                do()

    def end(self) -> None:
        """Everybody who still waits for something is told that nothing will come any more."""
        self._over = True
        for waiting in self._greenlets:
            if waiting:
                waiting.throw(GreenletExit)

    # --- what blocks ---------------------------------------------------------------------------------------------

    def start(self, process: Process, work: Callable[[], None]) -> None:
        running = greenlet(work, self.hub)
        self._greenlets.append(running)
        self.later(0, running.switch, process)

    def wait(self, process: Process, begin: Callable[[Callable[[Any], None]], None], patience: float) -> Any:
        """Begin something that will be answered, and wait for that; `TIMED_OUT` if it takes longer."""
        self._must_live(process)
        waiting = _Waiting(self, process)
        begin(waiting.tell)
        return waiting.answer(patience)

    def sleep(self, process: Process, ms: float) -> None:
        self._must_live(process)
        self.later(ms, getcurrent().switch, process)
        self.hub.switch()

    def _must_live(self, process: Process) -> None:
        if self._over or not process.alive:
            raise GreenletExit

    # --- the network ---------------------------------------------------------------------------------------------

    def carry(self, sender: Process, receiver: Process, deliver: Callable[[], None]) -> None:
        """A message: it arrives soon, late, twice, behind later ones, or never."""
        if receiver.name in sender.cut_off or sender.name in receiver.cut_off:
            return
        line = CALM if self.calm else sender.lines.get(receiver.name) or receiver.lines.get(sender.name) or USUAL
        fate = self._draw()
        if fate >= line.lost:
            self.later(self._delay(line), deliver, receiver)
        if fate > 1 - line.twice:
            self.later(self._delay(line), deliver, receiver)

    def _delay(self, line: Line) -> float:
        how, share = self._draw(), self._draw()
        if how < line.late:
            return 200 + 5_800 * share
        if how < line.late + line.slow:
            return 5 + 195 * share
        return 0.2 + 1.8 * share

    def ask(self, asker: Process, other: Process, do: Callable[[Callable[[Any], None]], None], patience: float) -> Any:
        """A question and its answer, each a message of its own. `do` answers by calling what it is given."""
        self._must_live(asker)
        waiting = _Waiting(self, asker)

        def answer(what: Any) -> None:
            self.carry(other, asker, partial(waiting.tell, what))

        self.carry(asker, other, partial(do, answer))
        return waiting.answer(patience)
