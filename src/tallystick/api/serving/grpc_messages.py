"""Messages of calls that are still to come: each has a time, and those that take long have room for so many of them."""

from __future__ import annotations

import asyncio
from typing import Any

from tallystick.api.serving.grpc_evidence import Context
from tallystick.core.errors import Busy

QUICK_SECONDS = 5.0
"""A message that has not come by then is a slow one, for whose bytes there has to be room."""
MOST_SLOW = 64
"""Of all callers together: each may have come but for its last byte. Whoever sends quickly is not kept out by them."""


class _Wait:
    __slots__ = ("end", "since", "slow", "task")

    def __init__(self, task: asyncio.Task[Any] | None, since: float) -> None:
        self.task, self.since = task, since
        self.slow = False
        self.end: Exception | None = None  # why it is over, if it is


class AwaitedMessages:
    """One timer for all of them: one for each, which is nearly always cancelled, would cost a call a tenth more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._quick = min(QUICK_SECONDS, seconds)
        self._loop = asyncio.get_running_loop()
        self._waits: dict[_Wait, None] = {}  # the oldest first
        self._slow = 0
        self._looking = False

    async def read(self, context: Context) -> Any:
        """The next message, or EOF. Raises TimeoutError if it does not come, and Busy if too many take so long."""
        wait = _Wait(asyncio.current_task(), self._loop.time())
        self._waits[wait] = None
        if not self._looking:
            self._look_at(wait.since + self._quick)
        try:
            return await context.read()
        except asyncio.CancelledError:
            if wait.end is not None and wait.task is not None and not wait.task.uncancel():
                raise wait.end from None
            raise  # by others: the caller is gone
        finally:
            self._slow -= wait.slow
            del self._waits[wait]

    def _look_at(self, when: float) -> None:
        self._looking = True
        self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._looking = False
        now = self._loop.time()
        soonest = now + self._quick
        for wait in list(self._waits):
            due = self._due(wait, now)
            soonest = min(soonest, due)
            if not wait.slow and due > now:
                break  # those behind it are younger
        if self._waits:
            self._look_at(soonest)

    def _due(self, wait: _Wait, now: float) -> float:
        """When it is to be looked at again; what is over is ended."""
        if wait.end is not None:
            return now + self._quick
        if not wait.slow and now >= wait.since + self._quick < wait.since + self._seconds:
            if self._slow >= MOST_SLOW:
                return self._over(wait, Busy("messages of others are on their way here; try again a little later"), now)
            wait.slow = True
            self._slow += 1
        due = wait.since + (self._seconds if wait.slow else self._quick)
        if now >= due:
            late = TimeoutError(f"the message has not come within {self._seconds:g} seconds")
            return self._over(wait, late, now)
        return due

    def _over(self, wait: _Wait, why: Exception, now: float) -> float:
        wait.end = why
        if wait.task is not None:
            wait.task.cancel()
        return now + self._quick
