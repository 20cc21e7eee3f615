"""The monkey: kills a process at random moments, spread over the whole work."""

from __future__ import annotations

import random
import time

from tallystick.demo.processes import Crew

# Each deck is dealt to its end before the next is shuffled, so that every role gets its part of the kills.
DECK = ("producer", "producer", "producer", "consumer", "consumer", "broker")
BEGIN, END = 0.02, 0.95  # shares of the work between which it kills
JITTER_SECONDS = 0.3


class Monkey:
    """Kills are planned by progress, not by time: on a slow machine as many hit the work as on a fast one.

    Each comes a random time after its share of the work is done, so that it can hit any step of any transaction.
    """

    def __init__(self, crew: Crew, kills: int, seed: int) -> None:
        self._crew = crew
        self._chance = random.Random(seed)  # noqa: S311 - it must be repeatable, not unguessable
        shares = sorted(self._chance.uniform(BEGIN, END) for _ in range(kills))
        self._plan = [(share, role) for share, role in zip(shares, self._roles(kills), strict=True)]
        self._due: float | None = None

    def _roles(self, kills: int) -> list[str]:
        roles: list[str] = []
        while len(roles) < kills:
            deck = list(DECK)
            self._chance.shuffle(deck)
            roles += deck
        return roles[:kills]

    @property
    def left(self) -> int:
        return len(self._plan)

    def look(self, progress: float) -> None:
        """Kill if it is time to; `progress` is the share of the work that is done."""
        if not self._plan or progress < self._plan[0][0]:
            return
        now = time.monotonic()
        if self._due is None:
            self._due = now + self._chance.uniform(0, JITTER_SECONDS)
        if now >= self._due:
            _, role = self._plan.pop(0)
            self._due = None
            self._crew.kill(self._chance.choice(self._crew.of(role)))
            if role == "broker":
                self._go_on_with("producer")

    def _go_on_with(self, role: str) -> None:
        """Kill one of these next, without waiting for progress.

        A producer that dies while the broker is away leaves commits that nobody but the check-back can find.
        """
        found = next((one for one in self._plan if one[1] == role), None)
        if found is not None:
            self._plan.remove(found)
            self._plan.insert(0, (0.0, role))
