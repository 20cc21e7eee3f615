"""Subscriptions: messages brought to handlers, each with its effect once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tallystick.client.base.deadlines import Deadline
from tallystick.client.base.tasks import Tasks
from tallystick.client.connection.loop_connection import LoopConnection
from tallystick.client.consumers.lanes import CLOSING_SECONDS
from tallystick.client.consumers.leases import LeaseConsumer
from tallystick.client.consumers.offsets import OffsetConsumer
from tallystick.client.consumers.subscription import Subscription
from tallystick.client.transactions.producer import Producer

GRACE_SECONDS = 20.0
"""How long handlers that are at work get to finish when the client stops. Together with `close()` (5 s) and the end of
the process it must fit into the 30 s that Kubernetes waits between SIGTERM and SIGKILL."""


class Consumers:
    """The running consumers on one event loop, started and stopped together."""

    def __init__(self, connection: LoopConnection, producer: Producer) -> None:
        self._connection = connection
        self._producer = producer
        self._running: dict[int, LeaseConsumer | OffsetConsumer] = {}
        self._stopping: list[LeaseConsumer | OffsetConsumer] = []
        self._stops = Tasks()

    def start(self, subscriptions: Sequence[Subscription]) -> None:
        """Start those that do not run yet."""
        for subscription in subscriptions:
            if id(subscription) not in self._running:
                kind = OffsetConsumer if subscription.by == "offset" else LeaseConsumer
                consumer = self._running[id(subscription)] = kind(subscription, self._connection, self._producer)
                consumer.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller is a handler, which a stop would wait for."""
        return any(consumer.is_current for consumer in [*self._running.values(), *self._stopping])

    async def stop(self, grace: float) -> None:
        """Stop them within `grace` seconds, and CLOSING_SECONDS more if a handler is stuck.

        Consumers that an earlier call is stopping count, too: of several calls the shortest grace ends the handlers.
        """
        deadline = Deadline(grace)
        self._stopping += self._running.values()
        self._running = {}
        stopping = list(self._stopping)
        await asyncio.gather(*(consumer.drain(deadline) for consumer in stopping))
        closing = Deadline(deadline.left_or(CLOSING_SECONDS))
        await asyncio.gather(*(consumer.end(closing) for consumer in stopping))
        self._stopping = [consumer for consumer in self._stopping if consumer not in stopping]

    async def close(self, grace: float) -> None:
        """Stop them, and end the stops that handlers have started."""
        await self.stop(grace)
        await self._stops.cancel(CLOSING_SECONDS)

    def stop_soon(self, grace: float) -> None:
        """Start a stop that the caller, a handler, does not wait for."""
        self._stops.start(self.stop(grace))
