"""Messages under lease: received, handled in parallel, acknowledged; given back when a handler fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct

from tallystick.client.base.message import Message
from tallystick.client.base.tasks import Tasks, repeat
from tallystick.client.connection import LoopConnection, questions
from tallystick.client.connection.brokers import BrokerPeer
from tallystick.client.consumers.effects import Desk, Handling, NotPreparedYet, handle_by_inbox, handle_plainly
from tallystick.client.consumers.lanes import lane_for
from tallystick.client.consumers.subscription import Subscription
from tallystick.client.transactions.producer import Producer
from tallystick.client.transactions.script import Script
from tallystick.core.errors import NotFound, StaleLease, TallystickError
from tallystick.core.ops import Ack, ClientOp, Nack, Renew
from tallystick.core.wire import ReceiveRequest

log = logging.getLogger("tallystick.client")

WAIT_SECONDS = 20.0
NOT_PREPARED_DELAY_MS = 500
NO_TOPIC_SECONDS = 0.5


class _Held(Struct):
    """A message in this process's hands, and when its lease wants renewing."""

    broker: BrokerPeer
    message: Message
    renew_at: float
    settling: bool = False


class LeaseConsumer:
    """One subscription on all brokers, by leases."""

    def __init__(self, subscription: Subscription, connection: LoopConnection, producer: Producer) -> None:
        self._subscription = subscription
        self._producer = producer
        self._brokers = connection.brokers
        self._member = connection.member
        self._timeout = connection.settings.timeout
        self._stats = connection.stats
        self._loop = asyncio.get_running_loop()
        self._lane = lane_for(subscription, connection.turn)
        self._receiving = Tasks()
        self._handling = Tasks()
        self._held: dict[str, _Held] = {}
        self._freed = asyncio.Event()
        self._stopping = False

    def start(self) -> None:
        for broker in self._brokers:
            what = f"receiving for {self._subscription.name} from {broker.address}"
            self._receiving.start(repeat(what, self._receive(broker)))
        self._receiving.start(repeat("renewing leases", self._renew))

    async def stop(self, grace: float) -> None:
        """Take no more; finish what is being handled, give back what is not, acknowledge."""
        self._stopping = True
        await self._receiving.cancel()
        renewing = Tasks()
        renewing.start(repeat("renewing leases", self._renew))
        await self._handling.wait(grace)
        await renewing.cancel()
        await self._handling.cancel()
        await self._lane.close()

    # Receiving

    def _receive(self, broker: BrokerPeer) -> Callable[[], Awaitable[float]]:
        subscription = self._subscription
        most = max(1, (subscription.concurrency + subscription.prefetch) // len(self._brokers))
        request = ReceiveRequest(
            subscription.topic,
            most,
            round(WAIT_SECONDS * 1000),
            round(subscription.invisible * 1000),
            subscription.ordered,
            subscription.start,
            list(subscription.tags) if subscription.tags is not None else None,
            self._member,
        )

        async def once() -> float:
            request.max = await self._room(broker, most)
            asked_at = self._loop.time()
            try:
                messages = await questions.receive(broker, subscription.group, request)
            except NotFound:
                return NO_TOPIC_SECONDS  # it may come into being later
            for message in messages:
                self._take(broker, message, asked_at)
            return 0.0

        return once

    async def _room(self, broker: BrokerPeer, most: int) -> int:
        """How many more messages of a broker may be held; waits until it is at least one."""
        while True:
            room = most - sum(held.broker is broker for held in self._held.values())
            if room > 0:
                return room
            self._freed.clear()
            await self._freed.wait()

    def _take(self, broker: BrokerPeer, message: Message, asked_at: float) -> None:
        self._held[message.receipt] = _Held(broker, message, asked_at + self._subscription.invisible / 2)
        self._handling.start(self._handle(broker, message))

    # Handling

    async def _handle(self, broker: BrokerPeer, message: Message) -> None:
        try:
            op = await self._settlement(message)
            # From here on the lease is of no use: a renewal could only come after the ack, and find nothing.
            self._held[message.receipt].settling = True
            await self._tell(broker, op)
        finally:
            del self._held[message.receipt]
            self._freed.set()

    async def _settlement(self, message: Message) -> ClientOp:
        """Handle the message; how the broker is to settle it."""
        group, receipts = self._subscription.group, [message.receipt]
        try:
            verdict = await self._lane.play(lambda desk: self._script(message, desk))
        except _Stopped:
            return Nack(group, receipts, delay_ms=0)
        except NotPreparedYet as early:
            return Nack(group, receipts, delay_ms=NOT_PREPARED_DELAY_MS, reason=str(early))
        except Exception as failure:
            return self._failed(message, failure)
        self._stats.handled += verdict is Handling.HANDLED
        self._stats.duplicates += verdict is Handling.DUPLICATE
        return Ack(group, receipts)

    def _script(self, message: Message, desk: Desk) -> Script[Handling]:
        if self._stopping:
            raise _Stopped
        if self._subscription.exactly_once is None:
            return handle_plainly(self._subscription, message)
        return handle_by_inbox(self._subscription, message, desk, self._producer)

    def _failed(self, message: Message, failure: Exception) -> ClientOp:
        subscription = self._subscription
        self._stats.handler_failures += 1
        most = subscription.max_attempts
        dead = most is not None and message.attempt >= most
        log.warning(
            "%s: message %s failed at attempt %d%s",
            subscription.name,
            message.id,
            message.attempt,
            ", the last one" if dead else "",
            exc_info=failure,
        )
        reason = f"{type(failure).__name__}: {failure}"[:1024]
        return Nack(subscription.group, [message.receipt], dead=dead, reason=reason)

    async def _tell(self, broker: BrokerPeer, op: ClientOp) -> None:
        try:
            await broker.ops.run(op, self._timeout)
        except StaleLease:
            log.info("%s: a lease had passed to another consumer", self._subscription.name)
        except TallystickError as error:
            log.warning("%s: not settled, the message will come again: %s", self._subscription.name, error)

    # Renewing

    async def _renew(self) -> float:
        """Keep the leases of what is waiting for a handler or is in one."""
        for broker in self._brokers:
            now = self._loop.time()
            due = [held for held in self._held.values() if held.broker is broker and held.renew_at <= now]
            await self._keep(broker, [held for held in due if not held.settling], now)
        return min(1.0, self._subscription.invisible / 8)

    async def _keep(self, broker: BrokerPeer, due: list[_Held], now: float) -> None:
        if not due:
            return
        invisible = self._subscription.invisible
        for held in due:
            held.renew_at = now + invisible / 2
        receipts = [held.message.receipt for held in due]
        try:
            await broker.ops.run(Renew(self._subscription.group, receipts, round(invisible * 1000)), self._timeout)
        except StaleLease as error:
            # What was settled while the renewal was on its way has lost nothing.
            stale = error.extra.get("stale", receipts)
            if any(held.message.receipt in stale and not held.settling for held in due):
                log.info("%s: a lease had passed to another consumer", self._subscription.name)
        except TallystickError as error:
            log.warning("%s: leases could not be renewed: %s", self._subscription.name, error)


class _Stopped(Exception):
    """The consumer stops before this message was begun."""
