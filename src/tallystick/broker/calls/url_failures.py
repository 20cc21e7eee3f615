"""Tells a call or a URL that fails on its own from a host that is down."""

from __future__ import annotations

from tallystick.core.calls import OutgoingCall

MAX_URLS = 10_000
RECENT_MS = 10_000


class UrlFailures:
    """A failure is the call's own while its host demonstrably answers other calls:

    * it timed out, and a call that began later was answered, or
    * its URL has failed before, and since then the host has answered at another URL but not at this one.

    The second rule needs a recent answer: when the host goes down, its failures count again after `RECENT_MS`.
    Calls are numbered in the order in which they begin. `now` is elapsed time (`Clock.elapsed_ms`)."""

    def __init__(self) -> None:
        self._failing: dict[str, int] = {}  # the number of the latest call when the URL failed first
        self._answered, self._answered_at = 0, 0

    def answered(self, call: OutgoingCall, number: int, now: int) -> None:
        self._answered, self._answered_at = max(self._answered, number), now
        if self._failing:
            self._failing.pop(place(call), None)

    def failed(self, call: OutgoingCall, number: int, latest: int, now: int, timed_out: bool) -> bool:
        """Note a failure; returns whether it is the call's own."""
        if timed_out and self._answered > number:
            return True
        since = self._note(call, latest)
        return self._answered > since and now - self._answered_at <= RECENT_MS

    def probed(self, call: OutgoingCall, number: int) -> None:
        """A probe may hang for long: until its URL answers, the next probes prefer others."""
        self._note(call, number)

    def _note(self, call: OutgoingCall, latest: int) -> int:
        url = place(call)
        if url not in self._failing and len(self._failing) >= MAX_URLS:
            self._failing.clear()
        return self._failing.setdefault(url, latest)

    def knows(self, call: OutgoingCall) -> bool:
        """Whether the URL has failed, or was probed, since its last answer."""
        return place(call) in self._failing


def place(call: OutgoingCall) -> str:
    """The URL without what differs from call to call. JSON-RPC has its method in the query."""
    return call.url if call.protocol == "json-rpc" else call.url.partition("?")[0]
