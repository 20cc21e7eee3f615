"""A circuit breaker: knows when a host has stopped answering, and when to try whether it is back."""

from __future__ import annotations

import random

from tallystick.core.backoff import Backoff


class Breaker:
    """Opens after so many calls in a row that could not reach the host. While it is open one call is made as a probe
    now and then; any real answer, of the probe or of a call that was still out, closes it. A probe that has no result
    after the longest wait between two probes does not hold up the next one.

    `now` is what has elapsed (`Clock.elapsed_ms`): whether a host is there does not depend on what time it is."""

    def __init__(self, most_failures: int, probe: Backoff, rng: random.Random | None = None) -> None:
        self._most, self._probe, self._rng = most_failures, probe, rng
        self.failures = 0  # in a row, since the last answer
        self.open = False
        self.next_probe_at = 0
        self.probes = 0  # begun since it opened, and one for the calls that opened it
        self._probing_until = 0

    def may_probe(self, now: int) -> bool:
        return self.open and self._probing_until <= now and self.next_probe_at <= now

    def probe_begun(self, now: int) -> None:
        self.probes += 1
        self._probing_until = now + self._probe.cap_ms

    def probe_undone(self, now: int) -> None:
        """The probe could not be sent, which says nothing about the host."""
        self._probing_until = 0
        self.probes = max(1, self.probes - 1)
        self.next_probe_at = now + self._probe.wait_ms(1, self._rng)

    def probe_spared(self, now: int) -> None:
        """No call waits for the host. The next one is the probe at once: the host may have been back for hours."""
        self._probing_until = 0
        self.probes = max(1, self.probes - 1)
        self.next_probe_at = now

    def answered(self) -> bool:
        """The host answered; tells whether that closed the breaker."""
        closed, self.open = self.open, False
        self.failures = self.probes = 0
        self._probing_until = 0
        return closed

    def unreachable(self, now: int, probe: bool) -> bool:
        """The host could not be reached; tells whether that opened the breaker."""
        self.failures += 1
        if self.open and not probe:
            return False  # one of those that were out when it opened: nothing new
        if not self.open and self.failures < self._most:
            return False
        opened, self.open = not self.open, True
        self._probing_until = 0
        self.probes = max(1, self.probes)
        self.next_probe_at = now + self._probe.wait_ms(self.probes, self._rng)
        return opened
