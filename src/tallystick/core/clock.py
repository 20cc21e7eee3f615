"""Time in milliseconds, from a source that tests can replace: what time it is, and how much of it has passed."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Since the epoch: for times that are stored or told. Somebody may set it, forward or back."""

    def elapsed_ms(self) -> int:
        """Since some moment that never changes: for waits and durations that are held in memory. Nobody can set it."""


class SystemClock:
    """The machine's clock, never seen to run backwards.

    A clock that is set back would make new work due long before (or after) older work; holding it at its highest
    reading only makes timers late, which every rule here tolerates. A jump of more than `MAX_HOLD_MS` is
    believed: holding still for a day would be worse than being early once.
    """

    MAX_HOLD_MS = 60_000

    def __init__(self) -> None:
        self._highest = 0

    def reading(self) -> int:
        """What the clock shows, wherever somebody has set it to."""
        return time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        now = self.reading()
        if now >= self._highest or self._highest - now > self.MAX_HOLD_MS:
            self._highest = now
        return self._highest

    def elapsed_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is told to move; for tests."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now = now_ms
        self._elapsed = 1_000_000

    def now_ms(self) -> int:
        return self._now

    def elapsed_ms(self) -> int:
        return self._elapsed

    def advance(self, ms: int) -> None:
        """Time passes."""
        self._now += ms
        self._elapsed += ms

    def step(self, ms: int) -> None:
        """Somebody sets the clock; no time passes."""
        self._now += ms
