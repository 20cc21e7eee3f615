"""What clients were sent and have not read: bounded for each of them in time, and for all together in bytes."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

log = logging.getLogger("tallystick.api")

PATIENCE_SECONDS = 60.0
"""A client that reads nothing of its answer for so long is gone, or does not want it."""
MAX_BYTES = 256 * 1024 * 1024
"""In all answers that wait to be read. Beyond it, whoever has read nothing for the longest time is cut off."""


class _Unread(NamedTuple):
    bytes: int
    since: float


class UnreadAnswers:
    def __init__(self, max_bytes: int = MAX_BYTES, patience: float = PATIENCE_SECONDS) -> None:
        self.patience = patience
        self._max_bytes = max_bytes
        self._total = 0
        self._waiting: dict[asyncio.Transport, _Unread] = {}  # the one that has read nothing for longest comes first

    def add(self, transport: asyncio.Transport, now: float) -> None:
        """A client does not read as fast as it is sent to."""
        self.remove(transport)
        size = transport.get_write_buffer_size()
        self._waiting[transport] = _Unread(size, now)
        self._total += size
        while self._total > self._max_bytes:
            self._cut(next(iter(self._waiting)), "the broker has no room for more answers that nobody reads")

    def remove(self, transport: asyncio.Transport) -> None:
        """It has read, or is gone."""
        if (was := self._waiting.pop(transport, None)) is not None:
            self._total -= was.bytes

    def look_at(self, transport: asyncio.Transport, now: float) -> None:
        """Cut the client off if it has read nothing for too long."""
        unread = self._waiting.get(transport)
        if unread is None:
            return
        if transport.get_write_buffer_size() < unread.bytes:
            self.add(transport, now)
        elif now - unread.since >= self.patience:
            self._cut(transport, f"it has read nothing for {self.patience:.0f} seconds")

    def _cut(self, transport: asyncio.Transport, why: str) -> None:
        log.warning("a client is cut off in the middle of its answer: %s", why)
        self.remove(transport)
        transport.abort()
