"""What the examples of several programs have in common: they start processes, kill them, and prove what is left."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from tallystick.demo.display import verdict_panel
from tallystick.demo.processes import Crew
from tallystick.demo.verdict import Line, passed
from tallystick.link import Link

SHOWN = 3  # of what is wrong, how much a line names


class OpenWork(NamedTuple):
    """What a broker has not finished."""

    transactions: int  # without an outcome
    calls: int  # not made, parked ones included

    @classmethod
    def of(cls, link: Link) -> OpenWork:
        transactions = sum(
            len(link.get("transactions", state=state)["transactions"]) for state in ("prepared", "parked")
        )
        calls = sum(len(link.get("calls", state=state)["calls"]) for state in ("waiting", "parked"))
        return cls(transactions, calls)

    def lines(self) -> list[Line]:
        return [
            Line("no transaction is left without an outcome", not self.transactions, _number(self.transactions)),
            Line("no call is left", not self.calls, _number(self.calls)),
        ]


def settle(url: str, seconds: float) -> OpenWork:
    """Wait until the broker has finished everything, or the time is up; what is left then."""
    deadline = time.monotonic() + seconds
    with Link(url, patience=seconds) as link:
        while any(left := OpenWork.of(link)) and time.monotonic() < deadline:
            time.sleep(0.1)
    return left


def nothing_wrong(claim: str, wrong: Iterable[Any]) -> Line:
    """Holds if there is none; names some of those there are."""
    found = sorted(map(str, wrong))
    more = ", ..." if len(found) > SHOWN else ""
    return Line(claim, not found, f"{len(found):,} wrong: {', '.join(found[:SHOWN])}{more}" if found else "")


def _number(left: int) -> str:
    return f"{left:,} left" if left else ""


class Stage:
    """One run of an example: where it works, what it says, and how it ends."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        self.given = given
        self.console = Console(stderr=given.json, highlight=False)
        self.directory = Path(tempfile.mkdtemp(prefix=f"tallystick-{name}-"))
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        style = "bold red" if text.startswith("kill") else "bold"
        self.console.print(Text(f"{time.monotonic() - self._began:5.1f} s  {text}", style=style), soft_wrap=True)

    def conclude(self, proven: str, lines: list[Line], facts: list[str], **more: Any) -> int:
        """Show the verdict, for programs too if they asked; the exit code. What is wrong is kept to be looked at."""
        self.console.print(verdict_panel(proven, lines, facts))
        good = passed(lines)
        if good and not self.given.keep:
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            self.console.print(f"databases and logs are kept in {self.directory}", soft_wrap=True)
        if self.given.json:
            print(json.dumps({"proven": good, "claims": [line._asdict() for line in lines], **more}))
        return 0 if good else 1


def parser(description: str, sabotage: Iterable[str]) -> argparse.ArgumentParser:
    """With the options that all of them have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="for the same kills again")  # noqa: S311
    made.add_argument("--sabotage", choices=sorted(sabotage), help="break it on purpose: the proof must fail")
    made.add_argument("--keep", action="store_true", help="keep databases and logs")
    made.add_argument("--json", action="store_true", help="print the verdict for programs")
    return made


def survived(crew: Crew) -> str:
    each = ", ".join(f"{role} {number}" for role, number in sorted(crew.kills.items()))
    return f"survived {sum(crew.kills.values())} kills ({each})"
