"""A circuit breaker: knows when a host has stopped answering, and when to try whether it is back."""

from __future__ import annotations

import random

from tallystick.core.backoff import Backoff


class Breaker:
    """Opens after so many calls in a row that could not reach the host. While it is open one call is made as a probe
    now and then; any real answer, of the probe or of a call that was still out, closes it.

    `now` is what has elapsed (`Clock.elapsed_ms`): whether a host is there does not depend on what time it is."""

    def __init__(self, most_failures: int, probe: Backoff, rng: random.Random | None = None) -> None:
        self._most, self._probe, self._rng = most_failures, probe, rng
        self.failures = 0  # in a row, since the last answer
        self.open = False
        self.next_probe_at = 0
        self._probing = False
        self._probes = 0

    def may_probe(self, now: int) -> bool:
        return self.open and not self._probing and self.next_probe_at <= now

    def probe_begun(self) -> None:
        self._probing = True

    def probe_undone(self, now: int) -> None:
        """The probe could not be sent, which says nothing about the host."""
        self._probing = False
        self.next_probe_at = now + self._probe.wait_ms(1, self._rng)

    def probe_spared(self, now: int) -> None:
        """No call waits for the host. The next one is the probe at once: the host may have been back for hours."""
        self._probing = False
        self.next_probe_at = now

    def answered(self) -> bool:
        """The host answered; tells whether that closed the breaker."""
        closed, self.open = self.open, False
        self.failures = self._probes = 0
        self._probing = False
        return closed

    def unreachable(self, now: int, probe: bool) -> bool:
        """The host could not be reached; tells whether that opened the breaker."""
        self.failures += 1
        if self.open and not probe:
            return False  # one of those that were out when it opened: nothing new
        if not self.open and self.failures < self._most:
            return False
        opened, self.open = not self.open, True
        self._probing = False
        self._probes += 1
        self.next_probe_at = now + self._probe.wait_ms(self._probes, self._rng)
        return opened
