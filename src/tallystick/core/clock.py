"""Time, as milliseconds since the epoch, from a source that tests can replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's clock, never seen to run backwards.

    A clock that is set back would make new work due long before (or after) older work; holding it at its highest
    reading only makes timers late, which every rule here tolerates. A jump of more than `MAX_HOLD_MS` is
    believed: holding still for a day would be worse than being early once.
    """

    MAX_HOLD_MS = 60_000

    def __init__(self) -> None:
        self._highest = 0

    def now_ms(self) -> int:
        now = time.time_ns() // 1_000_000
        if now >= self._highest or self._highest - now > self.MAX_HOLD_MS:
            self._highest = now
        return self._highest


class ManualClock:
    """A clock that stands still until it is told to move; for tests."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.value = now_ms

    def now_ms(self) -> int:
        return self.value

    def advance(self, ms: int) -> None:
        self.value += ms
