"""How long to wait before the next try: doubling, capped, jittered."""

from __future__ import annotations

import random

from msgspec import Struct


class Backoff(Struct, frozen=True):
    """Waits of `first_ms`, doubled each time, never more than `cap_ms`, each shortened by up to `jitter`."""

    first_ms: int = 2_000
    cap_ms: int = 30_000
    jitter: float = 0.2

    def wait_ms(self, tries: int, rng: random.Random | None = None) -> int:
        """The wait after `tries` tries (1 after the first)."""
        # The exponent is bounded before the shift: 2**tries for a large count would be a huge integer.
        full = min(self.cap_ms, self.first_ms << min(max(tries - 1, 0), 40))
        draw = (rng or _RNG).random()
        return max(1, int(full * (1 - self.jitter * draw)))


_RNG = random.Random()  # noqa: S311 - jitter spreads load, it hides nothing
