"""One run of the demo, from founding the banks to the verdict."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console

from tallystick.core.errors import TallystickError
from tallystick.demo import banks
from tallystick.demo.display import Display, Snapshot, show_verdict
from tallystick.demo.evidence import CheckBacks, gather, unsettled
from tallystick.demo.looks import pending
from tallystick.demo.monkey import Monkey
from tallystick.demo.processes import Crew
from tallystick.demo.spark_judge import NOT_WANTED, reconcile
from tallystick.demo.verdict import Judgement, Line, judge, passed
from tallystick.link import Link
from tallystick.local import LocalBroker, Process, module

Sabotage = Literal["", "barrier", "inbox"]

TICK_SECONDS = 0.1
ASK_SECONDS = 1.0  # between two questions to the broker
STILL_SECONDS = 120.0  # a slow machine is no failure; one on which nothing moves is
RECONCILE_LOG = "reconcile.log"
# Times are short so that what the kills leave behind is resolved and delivered while one looks on.
BROKER = {
    "check_after": "1s",
    "check_interval": "500ms",
    "check_interval_cap": "2s",
    "check_timeout": "2s",
    "redelivery_first": "200ms",
}


class DemoOptions(NamedTuple):
    transfers: int = 3_000
    kills: int = 30
    producers: int = 2
    consumers: int = 2
    seconds: float | None = None
    seed: int = 0
    keep: bool = False
    sabotage: Sabotage = ""
    spark: bool = True


class DemoResult(NamedTuple):
    lines: list[Line]
    last: Snapshot
    checks: CheckBacks
    judgement: Judgement
    seconds: float
    kept: Path | None = None  # databases and logs, if they are still there

    @property
    def passed(self) -> bool:
        return passed(self.lines)


def run(options: DemoOptions, console: Console) -> DemoResult:
    """Run the demo and show it; the result says whether the proof holds."""
    directory = Path(tempfile.mkdtemp(prefix="tallystick-demo-"))
    console.print(f"seed {options.seed}; working in {directory}")
    demo = Demo(options, directory)
    keep = options.keep
    try:
        result = demo.run(Display(console))
        keep = keep or not result.passed or result.judgement.failed
    except Exception:
        keep = True  # nobody can say what went wrong without what it left
        raise
    finally:
        demo.crew.kill_all()
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
        elif not options.keep:
            console.print(f"databases and logs are kept in {directory}", soft_wrap=True)
    remarks = [result.judgement.remark, f"seed {options.seed}" + (f"; kept in {directory}" if keep else "")]
    show_verdict(console, result.lines, result.last, result.checks, result.seconds, remarks)
    return result._replace(kept=directory if keep else None)


class Demo:
    """The banks, the crew and the monkey of one run, in one directory."""

    def __init__(self, options: DemoOptions, directory: Path) -> None:
        self._options, self._directory = options, directory
        self._bank_a, self._bank_b = directory / "bank-a.db", directory / "bank-b.db"
        self._broker = LocalBroker(directory / "broker", **BROKER)
        self._url = self._broker.url
        self._pending: int | None = 0
        self._settled = False
        self._asked_at = 0.0
        self.crew = Crew([])

    def run(self, display: Display) -> DemoResult:
        options = self._options
        began = time.monotonic()
        before = banks.found_bank_a(self._bank_a, banks.wishes(options.transfers, options.seed))
        banks.found_bank_b(self._bank_b)
        self._start()
        monkey = Monkey(self.crew, options.kills, options.seed)
        with display.running():
            self._work(display, monkey, began + (options.seconds or math.inf))
        self.crew.stop("producer", "consumer")
        last = self._snapshot("done")
        with Link(self._url) as broker:
            evidence, checks = gather(broker, self._bank_a, self._bank_b, before)
        judgement = self._reconciled(display)
        self.crew.stop("broker")
        lines = judge(evidence._replace(crashed=self.crew.failures.total()), judgement)
        return DemoResult(lines, last, checks, judgement, time.monotonic() - began)

    def _reconciled(self, display: Display) -> Judgement:
        if not self._options.spark:
            return NOT_WANTED
        text = "comparing both banks and the broker on Spark (Ctrl-C: a smaller judge, at once)"
        with display.step(text) as at_work:
            return reconcile(self._url, self._bank_a, self._bank_b, self._directory / RECONCILE_LOG, at_work)

    # --- the crew --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        producers = [self._worker("producer", "barrier", number) for number in range(self._options.producers)]
        consumers = [self._worker("consumer", "inbox", number) for number in range(self._options.consumers)]
        self.crew.processes += [self._broker, *producers, *consumers]
        for role in ("broker", "producer", "consumer"):
            self.crew.start(role)

    def _worker(self, role: str, breakable: str, number: int) -> Process:
        bank = self._bank_a if role == "producer" else self._bank_b
        shares = self._options.producers if role == "producer" else self._options.consumers
        given = ["--url", self._url, "--bank", str(bank), "--share", str(number), "--shares", str(shares)]
        wrong = ["--sabotage"] if self._options.sabotage == breakable else []
        command = module(f"tallystick.demo.{role}", *given, *wrong)
        return Process(role, command, self._directory / f"{role}-{number}.log")

    # --- the work --------------------------------------------------------------------------------------------------

    def _work(self, display: Display, monkey: Monkey, deadline: float) -> None:
        """Until all is tried and settled, or the time is up, or nothing moves (which the verdict then tells)."""
        moved, seen = time.monotonic(), (0, 0, 0)
        while not (self._settled and not monkey.left) and time.monotonic() < min(deadline, moved + STILL_SECONDS):
            now = self._snapshot("killing" if monkey.left else "settling")
            if now.done != seen:
                moved, seen = time.monotonic(), now.done
            display.show(now)
            monkey.look(now.progress)
            self.crew.revive()
            if time.monotonic() - self._asked_at > ASK_SECONDS:
                self._ask_broker(now)
            time.sleep(TICK_SECONDS)

    def _snapshot(self, phase: str) -> Snapshot:
        return Snapshot(
            wished=self._options.transfers,
            debited=banks.count(self._bank_a, "debit"),
            refused=banks.count(self._bank_a, "refusal"),
            credited=banks.count(self._bank_b, "credit"),
            pending=self._pending,
            kills=dict(self.crew.kills),
            phase=phase,
        )

    def _ask_broker(self, now: Snapshot) -> None:
        """Is it over? Asked in an order in which nothing new can come up behind: tried, pending, unsettled."""
        self._asked_at = time.monotonic()
        try:
            with Link(self._url, timeout=ASK_SECONDS) as broker:
                self._pending = pending(broker)
                self._settled = now.tried >= now.wished and self._pending == 0 and unsettled(broker) == 0
        except TallystickError:
            self._pending = None  # it was just killed; ask again later
