"""How many calls may be under way to one host at a time."""

from __future__ import annotations

from collections.abc import Iterable

FIRST_WINDOW = 8
SLOW_MS = 200


class Window:
    """Starts small, grows with each answer and shrinks with each failure, so that a host that comes back is not
    flooded.

    A call that has been under way for `SLOW_MS` no longer counts, because slow calls must not keep others from a host
    that answers. That takes capacity that all hosts share, so it needs `spare` capacity: hosts that never answer must
    not use up what the others need."""

    def __init__(self, per_host: int) -> None:
        self._per_host = per_host
        self._size = min(FIRST_WINDOW, per_host)
        self._ahead = 0
        self._opened = 0  # for slow calls

    @property
    def limit(self) -> int:
        return min(self._per_host, self._size + self._opened)

    def room(self, in_flight: int, queued: int) -> int:
        """How many more calls may be claimed. A host that answers has the next ones ready."""
        return max(0, self.limit + self._ahead - in_flight - queued)

    def answered(self) -> None:
        self._size = self._ahead = min(self._per_host, self._size + 1)

    def failed(self) -> None:
        self._size, self._ahead = max(1, self._size // 2), 0

    def reset(self) -> None:
        self._size, self._ahead, self._opened = min(FIRST_WINDOW, self._per_host), 0, 0

    def open_for_slow(self, began: Iterable[int], in_flight: int, now: int, spare: int) -> int:
        """Open further for the calls that are slow; returns how much of `spare` that takes.

        Args:
            began: When the calls under way began, the oldest first.
        """
        if in_flight < self._size or self._size >= self._per_host:
            self._opened = 0
            return 0
        slow = 0
        for at in began:
            if at > now - SLOW_MS:
                break
            slow += 1
        used = in_flight - self._size
        self._opened = min(slow, self._per_host - self._size, used + max(0, spare))
        return max(0, self._opened - used)
