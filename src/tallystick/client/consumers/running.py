"""Subscriptions: messages brought to handlers, each with its effect once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tallystick.client.connection.loop_connection import LoopConnection
from tallystick.client.consumers.leases import LeaseConsumer
from tallystick.client.consumers.offsets import OffsetConsumer
from tallystick.client.consumers.subscription import Subscription
from tallystick.client.transactions.producer import Producer

GRACE_SECONDS = 30.0
"""How long handlers that are at work get to finish when the client stops."""


class Consumers:
    """The running consumers on one event loop, started and stopped together."""

    def __init__(self, connection: LoopConnection, producer: Producer) -> None:
        self._connection = connection
        self._producer = producer
        self._running: dict[int, LeaseConsumer | OffsetConsumer] = {}

    def start(self, subscriptions: Sequence[Subscription]) -> None:
        """Start those that do not run yet."""
        for subscription in subscriptions:
            if id(subscription) not in self._running:
                kind = OffsetConsumer if subscription.by == "offset" else LeaseConsumer
                consumer = self._running[id(subscription)] = kind(subscription, self._connection, self._producer)
                consumer.start()

    async def stop(self, grace: float) -> None:
        running, self._running = self._running, {}
        await asyncio.gather(*(consumer.stop(grace) for consumer in running.values()))
