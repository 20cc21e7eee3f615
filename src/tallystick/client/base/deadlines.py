"""One limit for several waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Deadline:
    """Seconds that several waits share. They begin to count at the first of these waits."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None

    def start(self) -> None:
        """Begin to count, unless it has begun."""
        self.left()

    def left(self) -> float:
        """The seconds that are left, at least 0; the first call starts the clock."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        return max(self._until - now, 0.0)

    def left_or(self, seconds: float) -> float:
        """The seconds that are left, at least `seconds`: for what must be tried even after the deadline."""
        return max(self.left(), seconds)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What happens in here, such as a wait for a lock in the database, does not count."""
        began = time.monotonic()
        try:
            yield
        finally:
            if self._until is not None:
                self._until += time.monotonic() - began
