"""Who is killed, and when: a plan drawn from a seed.

Half of the kills come at a random moment. The others are aimed: they come right after the process has done something
that the outside can see, and before it has made a note of it itself. There is no worse moment.
"""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tallystick.local import Process

ROLES = ("shop", "spark", "books", "broker")
CAN_BE_AIMED = ("spark", "books")
LONGEST_DELAY = 1.0


class Kill(NamedTuple):
    at: float  # seconds after the pipeline was seen to work
    role: str
    aimed: bool
    delay: float  # what a kill that is not aimed waits once it is due, so that it can hit anything


def plan(kills: int, seconds: float, seed: int, only: tuple[str, ...] = ()) -> list[Kill]:
    """Spread over the time. Every role has its turn before one has a second; `only` those, all aimed, if given."""
    chance = random.Random(seed)  # noqa: S311 - it must be repeatable, not unguessable
    roles: list[str] = []
    while len(roles) < kills:
        deck = list(only or ROLES)
        chance.shuffle(deck)
        roles += deck
    moments = sorted(chance.uniform(0, seconds) for _ in range(kills))
    return [
        Kill(at, role, _is_aimed(role, roles[:number].count(role), bool(only)), chance.uniform(0, LONGEST_DELAY))
        for number, (at, role) in enumerate(zip(moments, roles, strict=False))
    ]


def _is_aimed(role: str, before: int, always: bool) -> bool:
    """The first, third, ... of those that can be."""
    return role in CAN_BE_AIMED and (always or before % 2 == 0)


class SparkProcess(Process):
    """Spark is several processes: Python, the driver's JVM, Python workers. They have a session of their own, so that
    all of them can be found and killed at once, as when a machine goes down."""

    def __init__(self, role: str, command: list[str], log: Path) -> None:
        super().__init__(role, ["setsid", *command], log)
        self._session = 0

    def start(self) -> None:
        super().start()
        self._session = self.pid

    def kill(self) -> None:
        for pid in self._members():
            with suppress(ProcessLookupError):  # it has died with another one
                os.kill(pid, signal.SIGKILL)
        super().kill()

    def _members(self) -> list[int]:
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in pids if self._session and _session_of(pid) == self._session]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def last_noted(checkpoint: Path) -> int:
    """The last batch that Spark has noted as done. What comes after it is repeated when Spark starts again."""
    numbers = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdigit()]
    return max(numbers, default=-1)
