"""Whose turn it is to change something that lies in several stores: one after the other, or each store would have its
own order of what came at once."""

from __future__ import annotations

import time
from collections.abc import Callable

TURN_SECONDS = 30.0
MOST_KEPT = 1_000


class Turns:
    """Kept in memory by the owner of one store. A turn that nobody gives back, because its holder died, ends by itself;
    one that is forgotten, because the owner is another now, was only there to keep two apart who came at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[str, tuple[str, float]] = {}

    def take(self, what: str, holder: str) -> bool:
        """Whether it is this holder's turn now."""
        now = self._clock()
        other, until = self._held.get(what, (holder, now))
        if other != holder and until > now:
            return False
        if len(self._held) >= MOST_KEPT:
            self._held = {each: (who, end) for each, (who, end) in self._held.items() if end > now}
        self._held[what] = (holder, now + TURN_SECONDS)
        return True

    def give_back(self, what: str, holder: str) -> None:
        if self._held.get(what, ("", 0.0))[0] == holder:
            del self._held[what]
