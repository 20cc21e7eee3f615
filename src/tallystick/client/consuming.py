"""All subscriptions of a client, started and stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .consumer import LeaseConsumer
from .follower import OffsetConsumer
from .runtime import Runtime
from .settings import Settings
from .stats import Stats
from .subscription import Subscription

GRACE_SECONDS = 30.0
"""How long handlers that are at work get to finish when the client stops."""


class Consumers:
    """The running consumers on one event loop."""

    def __init__(self, runtime: Runtime, settings: Settings, stats: Stats) -> None:
        self._runtime = runtime
        self._settings = settings
        self._stats = stats
        self._running: dict[int, LeaseConsumer | OffsetConsumer] = {}

    def start(self, subscriptions: Sequence[Subscription]) -> None:
        """Start those that do not run yet."""
        for subscription in subscriptions:
            if id(subscription) not in self._running:
                consumer = self._consumer(subscription)
                self._running[id(subscription)] = consumer
                consumer.start()

    def _consumer(self, subscription: Subscription) -> LeaseConsumer | OffsetConsumer:
        brokers = self._runtime.brokers
        if subscription.by == "offset":
            return OffsetConsumer(subscription, brokers, self._settings, self._stats)
        return LeaseConsumer(subscription, brokers, self._runtime.member, self._settings, self._stats)

    async def stop(self, grace: float) -> None:
        running, self._running = self._running, {}
        await asyncio.gather(*(consumer.stop(grace) for consumer in running.values()))
