"""Subscriptions: messages brought to handlers, each with its effect once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tallystick.client.base.settings import Settings
from tallystick.client.base.stats import Stats
from tallystick.client.connection.brokers import Brokers
from tallystick.client.consumers.leases import LeaseConsumer
from tallystick.client.consumers.offsets import OffsetConsumer
from tallystick.client.consumers.subscription import Subscription

GRACE_SECONDS = 30.0
"""How long handlers that are at work get to finish when the client stops."""


class Consumers:
    """The running consumers on one event loop, started and stopped together."""

    def __init__(self, brokers: Brokers, member: str, settings: Settings, stats: Stats, turn: asyncio.Lock) -> None:
        self._brokers = brokers
        self._member = member
        self._settings = settings
        self._stats = stats
        self._turn = turn
        self._running: dict[int, LeaseConsumer | OffsetConsumer] = {}

    def start(self, subscriptions: Sequence[Subscription]) -> None:
        """Start those that do not run yet."""
        for subscription in subscriptions:
            if id(subscription) not in self._running:
                consumer = self._consumer(subscription)
                self._running[id(subscription)] = consumer
                consumer.start()

    def _consumer(self, subscription: Subscription) -> LeaseConsumer | OffsetConsumer:
        if subscription.by == "offset":
            return OffsetConsumer(subscription, self._brokers, self._settings, self._stats, self._turn)
        return LeaseConsumer(subscription, self._brokers, self._member, self._settings, self._stats, self._turn)

    async def stop(self, grace: float) -> None:
        running, self._running = self._running, {}
        await asyncio.gather(*(consumer.stop(grace) for consumer in running.values()))
