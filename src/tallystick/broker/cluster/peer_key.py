"""The key that the brokers of a cluster sign with, read beside the beats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tallystick.broker.cluster.clock import EngineClock
from tallystick.store.shared.server import ServerAway

log = logging.getLogger("tallystick.broker.cluster")

FRESH_MS = 10_000


class PeerKey:
    """Read again every `FRESH_MS`: a failover of the engine may lose the key, and the next broker that joins then draws
    another. A lock on its table may hold the question up for longer than a lease, so no beat waits for it. Meanwhile
    the last known key stays in use.
    """

    def __init__(self, ask: Callable[[], Awaitable[bytes]], clock: EngineClock) -> None:
        self.value = b""
        self._ask, self._clock = ask, clock
        self._due = clock.elapsed_ms()
        self._asking: asyncio.Task[None] | None = None
        self._failed = False

    @property
    def known(self) -> bool:
        return bool(self.value)

    async def learn(self) -> None:
        """Raises `ServerAway` if the engine cannot be asked."""
        self.value = await self._ask()
        self._due = self._clock.elapsed_ms() + FRESH_MS

    def refresh(self) -> None:
        """Begin to read the key again, if it is time and no question is under way."""
        if self._clock.elapsed_ms() >= self._due and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._learn_again(), name="peer key")

    async def _learn_again(self) -> None:
        try:
            await self.learn()
            self._failed = False
        except ServerAway as error:
            if not self._failed:  # once, and not with every try
                log.warning("the key of the cluster cannot be read: %s; the last known one stays in use", error)
            self._failed = True
            self._due = self._clock.elapsed_ms() + FRESH_MS
        except Exception:
            log.exception("the key of the cluster could not be read; it is tried again")
            self._due = self._clock.elapsed_ms() + FRESH_MS

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
