"""Who is alive, judged by the watcher's own clock alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tallystick.store.shared.registry import Member
from tallystick.store.shared.time_limits import CONNECT_SECONDS

FORGET_AFTER_LEASES = 100
RECONNECT_MS = int(1_000 * CONNECT_SECONDS) + 2_000  # an attempt to connect, the back-off after it and another attempt


class Pulse(NamedTuple):
    beat: int
    since_ms: int  # how much was watched when this beat came
    seen_at: int  # when that was
    counted: bool  # whether a beat before it was seen, too: one alone may be what a dead member left behind


class Watch:
    """A member is dead once its beat has stood still for a whole lease of watching.

    Only time in which the watcher did look counts: after a gap (it was paused, or the engine was away) the others get
    the chance to be seen again, or everybody who comes back first would take everybody else for dead. After a gap of
    more than a lease, the members who were alive before it have time to connect to the engine again: one of them may
    have begun an attempt just before the engine came back, and wait for its time-out.
    """

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._gap_ms = lease_ms // 3
        self._watched_ms = 0
        self._looked_at: int | None = None
        self._pulses: dict[str, Pulse] = {}  # by id
        self._excused: set[str] = set()  # members who were alive before a gap, and have not been seen to beat since
        self._excused_until_ms = 0  # of watching

    def saw(self, members: Iterable[Member], asked_at: int, answered_at: int) -> None:
        """Between these two moments of the watcher's monotonic clock the members stood so. A beat is reckoned as late
        as it can have come, and silence as short as it can have been."""
        if self._looked_at is not None:
            alive = {member_id for member_id in self._pulses if self.alive(member_id)}
            self._watched_ms += min(max(0, asked_at - self._looked_at), self._gap_ms)
            if asked_at - self._looked_at > self._lease_ms:
                self._excused, self._excused_until_ms = alive, self._watched_ms + max(self._lease_ms, RECONNECT_MS)
        self._looked_at = answered_at
        known, self._pulses = self._pulses, {}
        for member in members:
            before = known.get(member.id)
            unchanged = before is not None and before.beat == member.beat
            now = Pulse(member.beat, self._watched_ms, answered_at, before is not None)
            self._pulses[member.id] = before if unchanged and before else now
            if not unchanged:
                self._excused.discard(member.id)

    def alive(self, member_id: str) -> bool:
        """Whoever was seen for the first time is alive for one lease."""
        if member_id not in self._pulses:
            return False
        excused = member_id in self._excused and self._watched_ms < self._excused_until_ms
        return excused or self._silent_ms(member_id) < self._lease_ms

    def beating(self, member_id: str) -> bool:
        """Seen to live, and lately. Who is not may still be alive: it keeps what it has, but nobody waits for it to
        take anything."""
        pulse = self._pulses.get(member_id)
        return pulse is not None and pulse.counted and self._silent_ms(member_id) < self._gap_ms

    def left_behind(self, member_id: str) -> bool:
        """Never seen to live, for longer than any living member needs."""
        pulse = self._pulses.get(member_id)
        return pulse is not None and not pulse.counted and self._silent_ms(member_id) >= self._gap_ms

    def seen_at(self, member_id: str) -> int | None:
        """When its last beat was seen."""
        pulse = self._pulses.get(member_id)
        return None if pulse is None else pulse.seen_at

    def long_dead(self) -> list[str]:
        """Those of whom nobody needs to keep anything."""
        most = FORGET_AFTER_LEASES * self._lease_ms
        return [member_id for member_id in self._pulses if self._silent_ms(member_id) >= most]

    def _silent_ms(self, member_id: str) -> int:
        return self._watched_ms - self._pulses[member_id].since_ms
