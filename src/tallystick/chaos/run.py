"""One run in one mode, from the first process to the verdict."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tallystick.chaos.cluster_ground import ClusterGround
from tallystick.chaos.display import ChaosDisplay, RunProgress
from tallystick.chaos.engines import engine_at
from tallystick.chaos.evidence import Inspector, Left, Names
from tallystick.chaos.ground import Ground, RocksdbGround
from tallystick.chaos.modes import PROMISES, Mode
from tallystick.chaos.nodes import ChaosNode, Nodes
from tallystick.chaos.schedule import Sizes, Strike, plan
from tallystick.chaos.verdict import Findings, owed, settled, standing
from tallystick.chaos.worker import Sabotage, WorkerSettings
from tallystick.demo.verdict import Line, passed

TICK_SECONDS = 0.02
LOOK_SECONDS = 0.5
MOST_BEHIND = 1_000  # messages that wait for consumers before producers do
# A slow machine breaks no promise; one on which nothing moves does.
STILL_SECONDS = 120.0


ROCKSDB = "rocksdb"


class ChaosOptions(NamedTuple):
    sizes: Sizes = Sizes()
    rounds: int = 4
    seconds: float = 8.0
    rate: float = 50.0
    messages: int = 0
    seed: int = 0
    sabotage: Sabotage = ""
    store: str = ROCKSDB
    stores: int = 4

    @property
    def shared(self) -> bool:
        return self.store != ROCKSDB

    def schedule(self, mode: Mode) -> list[list[Strike]]:
        return plan(f"{self.seed}/{mode}", self.rounds, self.seconds, self.sizes, self.shared)


class RoundLook(NamedTuple):
    """What held at the end of a round, while the load went on."""

    number: int
    lines: list[Line]
    committed: int
    unconfirmed: int
    late_seconds: float  # until all that was confirmed had been consumed


class ModeCounts(NamedTuple):
    committed: int
    consumed: int
    struck: dict[str, dict[str, int]]  # by role, then by blow
    resolved_by_check: dict[str, int]
    redriven: int
    sent_again: int
    duplicates_dropped: int  # at least: a killed consumer takes its last count with it
    longest_unavailable: float  # seconds, as seen by a producer that was itself running
    slowest_broker_start: float  # seconds, until it took work; part of the above where no other broker was up
    takeovers: int  # of stores of a cluster, by another broker or by another life of the same


class ModeResult(NamedTuple):
    mode: Mode
    lines: list[Line]
    rounds: list[RoundLook]
    counts: ModeCounts
    seconds: float
    interrupted: bool

    @property
    def passed(self) -> bool:
        return passed(self.lines) and all(passed(look.lines) for look in self.rounds)


class Patience:
    """How long nothing has moved."""

    def __init__(self) -> None:
        self._seen: object = None
        self._moved = time.monotonic()

    def is_over(self, seen: object) -> bool:
        if seen != self._seen:
            self._seen, self._moved = seen, time.monotonic()
        return time.monotonic() - self._moved > STILL_SECONDS


class Run:
    """The nodes of one run, in a directory of its own."""

    def __init__(self, options: ChaosOptions, mode: Mode, directory: Path, display: ChaosDisplay) -> None:
        self._options, self._mode, self._display = options, mode, display
        self._names = Names(directory)
        self._promise = PROMISES[mode]
        directory.mkdir(parents=True, exist_ok=True)
        self._ground = _ground(options, directory)
        settings = WorkerSettings(
            mode=mode,
            consumers=options.sizes.consumer,
            rate=options.rate,
            messages=options.messages,
            sabotage=options.sabotage,
            enough=str(self._names.enough),
            hold=str(self._names.hold),
        )
        self._nodes = Nodes(self._names, options.sizes, self._ground, settings)
        self._inspector = Inspector(mode, self._names, options.sizes.producer, options.sizes.consumer, [])
        self._interrupted = False
        self._shown = 0.0
        self._round_number = 0

    def run(self) -> ModeResult:
        began = time.monotonic()
        try:
            with self._interruptible(), self._display.running():
                self._nodes.start()
                self._inspector.urls = self._ground.stores()
                looks = self._rounds()
                self._settle()
                self._nodes.stop_workers()
                found = self._inspector.settled()._replace(crashed=self._nodes.crashed.total())
                counts = self._counts(found)
        finally:
            self._nodes.end()
        lines = settled(found, self._promise)
        return ModeResult(self._mode, lines, looks, counts, time.monotonic() - began, self._interrupted)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C ends the rounds; what has happened is still judged. The second ends everything."""

        def told(number: int, frame: FrameType | None) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            self._display.say("no more rounds; Ctrl-C again ends without a verdict")

        before = signal.signal(signal.SIGINT, told)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # --- rounds ----------------------------------------------------------------------------------------------------

    def _rounds(self) -> list[RoundLook]:
        looks: list[RoundLook] = []
        for strikes in self._options.schedule(self._mode):
            self._round_number += 1
            self._gather_speed()
            self._round(strikes)
            look = self._look()
            if self._interrupted:  # the end is near, and says more
                break
            looks.append(look)
            self._display.round_over(look.number, look.lines, look.late_seconds)
            if not passed(look.lines) or self._all_sent():
                break
        return looks

    def _gather_speed(self) -> None:
        """A blow at a process that has not begun with its work shows nothing."""
        patience = Patience()
        while (at_work := self._inspector.at_work()) < self._options.sizes.producer + self._options.sizes.consumer:
            if patience.is_over(at_work) or self._interrupted:
                return
            self._tick("starting")

    def _round(self, strikes: list[Strike]) -> None:
        began = time.monotonic()
        waiting, under_way = list(strikes), list[Strike]()
        up = False
        while waiting or under_way or not up or (self._since(began) < self._options.seconds and not self._interrupted):
            if self._interrupted:
                waiting.clear()
            while waiting and waiting[0].at <= self._since(began):
                self._nodes.strike(waiting[0])
                under_way.append(waiting.pop(0))
            for strike in [one for one in under_way if self._interrupted or one.ends <= self._since(began)]:
                self._nodes.relieve(strike)
                under_way.remove(strike)
            up = self._tick("striking")

    def _since(self, began: float) -> float:
        return time.monotonic() - began

    def _tick(self, phase: str) -> bool:
        """Look after the nodes; whether all of them are up."""
        time.sleep(TICK_SECONDS)
        up = self._nodes.tend()
        if time.monotonic() - self._shown > LOOK_SECONDS:
            self._inspector.look()
            self._hold_back()
            self._shown = time.monotonic()
            self._display.show(self._progress(phase))
        return up

    def _hold_back(self) -> None:
        """On a machine that cannot keep up, what is left to consume must not grow from round to round."""
        behind = self._inspector.committed() - self._inspector.consumed()
        if behind > MOST_BEHIND and not self._promise.may_lose:  # what is lost is never caught up with
            self._names.hold.touch()
        else:
            self._names.hold.unlink(missing_ok=True)

    def _look(self) -> RoundLook:
        """The inequalities. What is owed now has to come, for as long as anything comes at all."""
        began = time.monotonic()
        found = self._inspector.standing()
        missing = self._inspector.without_consumed(owed(found, self._promise))
        patience = Patience()
        while missing and not patience.is_over(len(missing)) and not self._interrupted:
            self._tick("looking")
            missing = self._inspector.without_consumed(missing)
        lines = standing(found, self._promise, missing)
        number, late = self._round_number, time.monotonic() - began
        return RoundLook(number, lines, len(found.committed), len(found.unconfirmed), late)

    def _all_sent(self) -> bool:
        return all(journal.done for journal in self._inspector.told)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Until nothing is left to do, or nothing moves any more (which the verdict then tells)."""
        self._names.enough.touch()
        patience = Patience()
        left: Left | None = None
        while left is None or not (left.nothing or patience.is_over((left, self._inspector.consumed()))):
            deadline = time.monotonic() + LOOK_SECONDS
            while time.monotonic() < deadline:
                self._tick("settling")
            left = self._inspector.left()
        self._inspector.look()

    def _progress(self, phase: str) -> RunProgress:
        return RunProgress(
            self._mode,
            phase,
            self._round_number,
            self._options.rounds,
            self._inspector.committed(),
            self._inspector.consumed(),
            self._nodes.struck,
        )

    def _counts(self, found: Findings) -> ModeCounts:
        inspector = self._inspector
        struck: dict[str, dict[str, int]] = {}
        for (role, blow), times in sorted(self._nodes.struck.items()):
            struck.setdefault(role, {})[blow] = times
        waits = [
            journal.longest_wait(self._nodes.pauses[ChaosNode("producer", number)])
            for number, journal in enumerate(inspector.told)
        ]
        by_check: Counter[str] = inspector.resolved_by_check() if self._mode == "check-back" else Counter()
        return ModeCounts(
            committed=len(found.committed),
            consumed=inspector.consumed(),
            struck=struck,
            resolved_by_check=dict(by_check),
            redriven=sum(books.redriven() for books in inspector.producers),
            sent_again=sum(journal.count("again") for journal in inspector.told),
            duplicates_dropped=sum(journal.total("duplicates") for journal in inspector.counted),
            longest_unavailable=round(max(waits, default=0.0), 2),
            slowest_broker_start=round(self._nodes.slowest_start, 2),
            takeovers=self._ground.takeovers(),
        )


def _ground(options: ChaosOptions, directory: Path) -> Ground:
    count = options.sizes.broker
    if not options.shared:
        return RocksdbGround(directory, count)
    return ClusterGround(directory, count, options.stores, engine_at(options.store, directory / "engine.log"))
