"""What the monkey shows: progress while it runs, what held after each round, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tallystick.chaos.modes import Mode
from tallystick.chaos.schedule import BLOWS
from tallystick.demo.verdict import Line

PLAIN_SECONDS = 5.0


class RunProgress(NamedTuple):
    """Where a run is."""

    mode: Mode
    phase: str
    round: int
    rounds: int
    committed: int
    consumed: int
    struck: Mapping[tuple[str, str], int]

    def __str__(self) -> str:
        return (
            f"{self.mode}, round {self.round} of {self.rounds}, {self.phase}: {self.committed:,} committed, "
            f"{self.consumed:,} consumed; {blows_text(self.struck)}"
        )


class ChaosDisplay:
    """A line that changes on a terminal; elsewhere one now and then. Rounds have a line of their own."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._printed_at = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=8, transient=True) as self._live:
            yield
        self._live = None

    def show(self, now: RunProgress) -> None:
        if self._live is not None:
            self._live.update(Text(str(now), style="dim"))
        elif time.monotonic() - self._printed_at > PLAIN_SECONDS:
            self._printed_at = time.monotonic()
            self.say(str(now))

    def round_over(self, number: int, lines: list[Line], late_seconds: float) -> None:
        broken = [f"{line.claim}: {line.detail}" for line in lines if not line.holds]
        held = f"all that was confirmed had been consumed after {late_seconds:.1f} s, and nothing else"
        self.say(f"round {number}: " + ("; ".join(broken) if broken else held))

    def say(self, text: str) -> None:
        self._console.print(text, style="dim", soft_wrap=True, markup=False)


def blows_text(struck: Mapping[tuple[str, str], int]) -> str:
    """How many of each kind, over all roles."""
    words = {
        "kill": ("kill", "kills"),
        "pause": ("pause", "pauses"),
        "cut": ("cut", "cuts"),
        "stall": ("stall", "stalls"),
        "lose": ("loss of answers", "losses of answers"),
    }
    words |= {
        f"engine-{blow}": (f"{one} to the engine", f"{many} to the engine")
        for blow, (one, many) in words.items()
        if blow not in ("kill", "pause")
    }
    totals = {blow: sum(times for (_, one), times in struck.items() if one == blow) for blow in words}
    return ", ".join(
        f"{number} {words[blow][number != 1]}" for blow, number in totals.items() if number or blow in BLOWS
    )
