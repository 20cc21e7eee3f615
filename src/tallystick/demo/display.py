"""What the demo shows: progress while it runs, and the verdict at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from tallystick.demo.evidence import CheckBacks
from tallystick.demo.verdict import Line, passed

PLAIN_SECONDS = 5.0
SLOW_SECONDS = 15.0  # between two lines about a step with nothing to count


class Snapshot(NamedTuple):
    """Where the run is."""

    wished: int
    debited: int
    refused: int
    credited: int
    pending: int | None  # None while the broker does not answer
    kills: Mapping[str, int]
    phase: str

    @property
    def tried(self) -> int:
        return self.debited + self.refused

    @property
    def done(self) -> tuple[int, int, int]:
        """What has happened so far; it only grows."""
        return self.tried, self.credited, sum(self.kills.values())

    @property
    def progress(self) -> float:
        """The share of the work that is done, on both sides together."""
        return (self.tried + self.refused + self.credited) / (2 * self.wished)


class Display:
    """A live picture on a terminal; elsewhere a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:>10}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._tried = self._bars.add_task("transfers", total=None)
        self._credited = self._bars.add_task("credited", total=None)
        self._live: Live | None = None
        self._printed_at = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=8, transient=True) as self._live:
            yield

    def show(self, now: Snapshot) -> None:
        self._bars.update(self._tried, completed=now.tried, total=now.wished)
        self._bars.update(self._credited, completed=now.credited, total=now.wished - now.refused)
        if self._live is not None:
            self._live.update(Group(self._bars, Text(_status(now), style="dim")))
        elif time.monotonic() - self._printed_at > PLAIN_SECONDS:
            self._printed_at = time.monotonic()
            self._console.print(f"{now.tried:,} of {now.wished:,} tried; {_status(now)}", soft_wrap=True)

    @contextmanager
    def step(self, text: str) -> Iterator[Callable[[float, str], None]]:
        """A step that takes its time, with nothing to count. What it gives is called with the seconds that have passed
        and what is being done."""
        self._console.print(text, style="dim", soft_wrap=True)
        if self._console.is_terminal:
            with self._console.status("") as line:
                yield lambda seconds, doing: line.update(f"{seconds:4.0f} s  {escape(doing)}")
            return
        yield self._line_now_and_then()

    def _line_now_and_then(self) -> Callable[[float, str], None]:
        due = 0.0

        def tell(seconds: float, doing: str) -> None:
            nonlocal due
            if seconds >= due:
                due = seconds + SLOW_SECONDS
                self._console.print(f"{seconds:4.0f} s  {doing}", style="dim", soft_wrap=True, markup=False)

        return tell


def _status(now: Snapshot) -> str:
    waiting = "broker away" if now.pending is None else f"{now.pending} pending"
    numbers = f"{now.debited:,} committed, {now.refused:,} refused, {now.credited:,} credited, {waiting}"
    return f"{numbers}; {kills_text(now.kills)}; {now.phase}"


def kills_text(kills: Mapping[str, int]) -> str:
    each = ", ".join(f"{role} {kills.get(role, 0)}" for role in ("producer", "consumer", "broker"))
    return f"{sum(kills.values())} kills ({each})"


def show_verdict(
    console: Console, lines: list[Line], last: Snapshot, checks: CheckBacks, seconds: float, remarks: list[str]
) -> None:
    facts = [
        f"{last.debited:,} committed and {last.refused:,} refused of {last.wished:,} transfers in {seconds:.0f} s",
        f"survived {kills_text(last.kills)}",
        f"the check-back resolved {checks.committed + checks.rolled_back}: "
        f"{checks.committed} as committed, {checks.rolled_back} as rolled back",
        *remarks,
    ]
    console.print(verdict_panel("every committed transfer credited exactly once, no other", lines, facts))


def verdict_panel(proven: str, lines: list[Line], facts: list[str]) -> Panel:
    """`proven` is what may be said if every line holds."""
    good = passed(lines)
    title, colour = (proven, "green") if good else ("THE PROOF FAILED", "red")
    content = Group(*map(_claim, lines), Text(), *map(Text, facts))
    return Panel(content, title=title, border_style=colour, title_align="left")


def _claim(line: Line) -> Text:
    mark = ("yes  ", "green") if line.holds else (" NO  ", "bold red")
    return Text.assemble(mark, line.claim, (f": {line.detail}" if line.detail else "", "" if line.holds else "red"))
