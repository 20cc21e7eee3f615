"""One host that calls go to: how many it may have at once, and what waits here for it."""

from __future__ import annotations

from collections import deque

from tallystick.broker.calls.breaker import Breaker
from tallystick.core.calls import HostView
from tallystick.core.clock import Clock
from tallystick.store.protocol import CallClaim

FIRST_WINDOW = 8
MAX_SEEN = 200_000


class Host:
    """The share of a host begins small and grows with each answer, so that hosts which take connections and never
    answer can hold little of what all hosts share.

    `now` is what has elapsed (`Clock.elapsed_ms`), as for its breaker."""

    def __init__(self, channel: int, name: str, per_host: int, breaker: Breaker) -> None:
        self.channel, self.name, self.breaker = channel, name, breaker
        self._per_host = per_host
        self._window = min(FIRST_WINDOW, per_host)
        self.in_flight = 0
        # Claimed and not begun: of a host that answers, the next calls begin at once when others end, without a
        # group commit in between.
        self.queue: deque[CallClaim] = deque()
        self._ahead = 0
        self.next_look = 0
        self.more = True  # whether the store may have something that is due
        # Also at the start: what waits because the host could not be reached by a broker before this one is tried now.
        self.catching_up = True
        self._seen: set[tuple[str, int]] = set()
        self._counted: dict[tuple[str, int], int] = {}

    def room(self, now: int) -> int:
        """How many calls may be claimed now."""
        if self.breaker.open:
            return 1 if self.breaker.may_probe(now) else 0
        return max(0, self._window + self._ahead - self.in_flight - len(self.queue))

    @property
    def may_begin(self) -> bool:
        return bool(self.queue) and self.in_flight < self._window and not self.breaker.open

    @property
    def runs_low(self) -> bool:
        """Few enough are here that it is worth a claim to bring more."""
        return self.more and not self.breaker.open and len(self.queue) <= self._window // 2

    def wait_for_room(self) -> None:
        """There is something for it that cannot be taken now: it is looked for when a call ends, or with a probe."""
        self.more = True
        if self.breaker.open:
            self.next_look = 0

    def wants_a_look(self, now: int) -> bool:
        return self.next_look <= now and (not self.breaker.open or self.breaker.may_probe(now))

    def looked(self, now: int, claims: list[CallClaim], due_in: int | None, again_ms: int) -> None:
        """What a claim has found: whether there is more to come, and in how many milliseconds."""
        self.more = due_in is not None and due_in <= 0
        self.next_look = now + (again_ms if due_in is None else max(0, min(due_in, again_ms)))
        if self.catching_up:
            self._caught_up(claims)
            self.more = self.more or self.catching_up

    def _caught_up(self, claims: list[CallClaim]) -> None:
        """Those that waited for the host are through when none comes any more, or one that could not be made again
        comes back: each is taken early once, then it waits as it must."""
        keys = {(claim.gid, claim.index) for claim in claims}
        if not keys or keys & self._seen or len(self._seen) > MAX_SEEN:
            self.catching_up = False
            self._seen = set()
        else:
            self._seen |= keys

    def answered(self) -> bool:
        """Tells whether the host is back."""
        back = self.breaker.answered()
        self._window = self._ahead = min(self._per_host, self._window + 1)
        if back:
            self._counted.clear()
            self.catching_up = self.more = True
            self._seen = set()
            self.next_look = 0
        return back

    def unreachable(self, now: int, probe: bool) -> bool:
        """Tells whether the host has just been given up."""
        self._window, self._ahead = max(1, self._window // 2), 0
        gone = self.breaker.unreachable(now, probe)
        if self.breaker.open:
            self.catching_up = False
            self._window = min(FIRST_WINDOW, self._per_host)
            self.next_look = 0
        return gone

    def counts_as_a_try(self, claim: CallClaim, now: int, wait_ms: int) -> bool:
        """Whether a probe that failed is one of the call's own tries. Probes come more often than a call would be
        tried by itself, so only those count that are `wait_ms` apart: an outage must not use up its tries."""
        key = (claim.gid, claim.index)
        last = self._counted.get(key)
        if last is not None and now - last < wait_ms:
            return False
        if len(self._counted) >= MAX_SEEN:
            self._counted.clear()
        self._counted[key] = now
        return True

    def view(self, clock: Clock) -> HostView:
        breaker = self.breaker
        # For people: the time of day at which the wait will be over.
        probe_at = clock.now_ms() + breaker.next_probe_at - clock.elapsed_ms() if breaker.open else 0
        return HostView(self.name, self.in_flight, breaker.open, breaker.failures, probe_at)
