"""One host that calls go to: how many it may have at once, and what waits here for it."""

from __future__ import annotations

from collections import deque

from tallystick.broker.calls.breaker import Breaker
from tallystick.broker.calls.url_failures import UrlFailures
from tallystick.broker.calls.window import Window
from tallystick.core.calls import HostView
from tallystick.core.clock import Clock
from tallystick.store.protocol import CallClaim

MAX_SEEN = 200_000
# A probe chooses among so many calls: 8 for the first probe, twice as many for each one after it.
FIRST_CHOICE, LAST_CHOICE = 8, 256


class Host:
    """What one host has here: its window, its circuit breaker and its queue.

    `now` is elapsed time (`Clock.elapsed_ms`), as for its breaker."""

    def __init__(self, channel: int, name: str, per_host: int, breaker: Breaker) -> None:
        self.channel, self.name, self.breaker = channel, name, breaker
        self._per_host, self._window, self._failures = per_host, Window(per_host), UrlFailures()
        self._began: dict[int, int] = {}  # the calls under way by their number, the oldest first
        self._latest = self._probe = 0
        self._broken = False  # whether the last failure was one of the connection, whatever the URL
        # Claimed and not begun: of a host that answers, the next calls begin at once when others end, without a
        # group commit in between.
        self.queue: deque[CallClaim] = deque()
        self.next_look = 0
        self.more = True  # whether the store may have something that is due
        # Set at the broker's start too: what waits because an earlier broker could not reach the host is tried now.
        self.catching_up = False
        self._seen: set[tuple[str, int]] = set()
        self._counted: dict[tuple[str, int], int] = {}

    @property
    def in_flight(self) -> int:
        return len(self._began)

    def room(self, now: int) -> int:
        """How many calls may be claimed now."""
        if self.breaker.open:
            free = self.in_flight < self._per_host or self._probe not in self._began
            return 1 if free and self.breaker.may_probe(now) else 0
        return self._window.room(self.in_flight, len(self.queue))

    @property
    def may_begin(self) -> bool:
        return bool(self.queue) and self.in_flight < self._window.limit and not self.breaker.open

    @property
    def runs_low(self) -> bool:
        """Few enough are here that it is worth a claim to bring more."""
        return self.more and not self.breaker.open and len(self.queue) <= self._window.limit // 2

    def open_for_slow(self, now: int, spare: int) -> int:
        """Slow calls under way must not keep others waiting; returns how much of `spare` that takes."""
        if not self._began or self.breaker.open:
            return 0
        wanted = spare if self.queue or self.more else 0
        return self._window.open_for_slow(self._began.values(), self.in_flight, now, wanted)

    def begin(self, claim: CallClaim, now: int, probe: bool) -> int:
        """A call begins; returns its number."""
        self._latest += 1
        self._began[self._latest] = now
        if probe:
            self._probe = self._latest
            self._failures.probed(claim.call, self._latest)
        return self._latest

    def end(self, number: int) -> None:
        del self._began[number]

    def is_last_probe(self, number: int) -> bool:
        """Whether no later probe has begun, because this one took too long."""
        return number == self._probe

    @property
    def probe_choice(self) -> int:
        """How many calls the next probe is chosen from. One will do if connections fail, which they do for any URL."""
        return 1 if self._broken else min(LAST_CHOICE, FIRST_CHOICE << min(self.breaker.probes - 1, 8))

    def choose_probe(self, claims: list[CallClaim]) -> CallClaim:
        """Prefer a URL that has not failed, then a call that was tried less often. Calls that were not chosen go to
        the end of the line, so the next probe is chosen from others."""
        return min(claims, key=lambda claim: (self._failures.knows(claim.call), claim.attempts))

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

    def answered(self, claim: CallClaim, number: int, now: int) -> bool:
        """Note an answer; returns whether the host is back."""
        self._failures.answered(claim.call, number, now)
        self._window.answered()
        self._broken = False
        self._counted.clear()
        back = self.breaker.answered()
        if back:
            self.catching_up = self.more = True
            self._seen = set()
            self.next_look = 0
        return back

    def is_own_failure(self, claim: CallClaim, number: int, now: int, timed_out: bool) -> bool:
        """Note that a call could not reach the host; returns whether that is about the call alone."""
        self._window.failed()
        return self._failures.failed(claim.call, number, self._latest, now, timed_out)

    def unreachable(self, now: int, probe: bool, broken: bool) -> bool:
        """The host could not be reached; returns whether it counts as down from now on."""
        self._broken = broken
        gone = self.breaker.unreachable(now, probe)
        if self.breaker.open:
            self.catching_up = False
            self._window.reset()
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
