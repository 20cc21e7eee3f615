"""Long polls: who waits for which topic, woken when it has something new."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from tallystick.core.errors import Busy, TallystickError

T = TypeVar("T")
MAX_KNOWN = 100_000
ANY = "*"  # no topic is called so: whoever waits for it waits for whichever topic is next


class Waiters:
    """A topic's version grows with every append. Whoever saw a version waits only while it is still the newest,
    so an append between looking and waiting is never slept through."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._appends = 0
        self._versions: dict[str, int] = {}  # of a topic, the number of its newest append
        self._forgotten = 0  # no topic that is not in `_versions` has a newer append than this
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._closed = False
        self._refusal: type[TallystickError] | None = None
        # Receives under way that lend one message of a key at a time: an ack is news to them.
        self.in_order = 0

    def version(self, *topics: str) -> int:
        return max(self._versions.get(topic, self._forgotten) for topic in topics)

    def appended(self, topics: set[str]) -> None:
        self._appends += 1
        for topic in (*topics, ANY):
            self._versions[topic] = self._appends
            self._wake(topic)
        if len(self._versions) > MAX_KNOWN:
            # Names may come from outside, so their number has a bound. Whoever waits now looks once too often.
            self._versions.clear()
            self._forgotten = self._appends

    def _wake(self, topic: str) -> None:
        for future in self._waiting.pop(topic, ()):
            if not future.done():
                future.set_result(None)

    async def poll(
        self,
        topics: Collection[str],
        wait_ms: int,
        look: Callable[[], Awaitable[T]],
        enough: Callable[[T], bool],
        again_in: Callable[[T], float | None] = lambda _: None,
    ) -> T:
        """Look until it is enough: again when one of the topics has something new, or after the seconds that the last
        look told. Gives what was seen last when the time is up, or when the broker drains."""
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            seen = self.version(*topics)
            found = await look()
            left = deadline - asyncio.get_running_loop().time()
            if enough(found) or left <= 0:
                return found
            again = again_in(found)
            await self.wait(topics, seen, left if again is None else min(left, again))
            if self._refusal is not None:
                raise self._refusal()
            if self._closed:
                return found

    async def wait(self, topics: Collection[str], seen: int, seconds: float) -> None:
        """Until one of the topics is newer than `seen`, or the time is up, or the broker drains."""
        if self._closed or seconds <= 0 or self.version(*topics) != seen:
            return
        if self._count >= self._most:
            raise Busy(f"{self._count} long polls are waiting, the limit is {self._most}")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for topic in topics:
            self._waiting[topic].add(future)
        self._count += 1
        try:
            # Not wait_for, which forgets a cancellation that comes together with the wake-up: a caller that is
            # gone would go on to receive.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await future
        finally:
            self._count -= 1
            for topic in topics:
                self._leave(topic, future)

    def _leave(self, topic: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[topic]

    def close(self, refusal: type[TallystickError] | None = None) -> None:
        """Send everybody home: with what was seen last, or with an error if there is one to be told."""
        self._closed, self._refusal = True, refusal
        for topic in list(self._waiting):
            self._wake(topic)
