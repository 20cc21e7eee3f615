"""Messages under lease: received, handled in parallel, acknowledged; given back when a handler fails.

A handler's thread (or slot on the loop) that is free takes what is waiting, up to a batch. Nothing waits for a batch to
become full.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from tallystick.client.base.deadlines import Deadline
from tallystick.client.base.message import Message
from tallystick.client.base.refusals import Refusals
from tallystick.client.base.tasks import Tasks, repeat
from tallystick.client.connection import questions
from tallystick.client.connection.loop_connection import LoopConnection
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.consumers.effects import Desk, Handling, NotPreparedYet, OneByOne, handle_once, handle_plainly
from tallystick.client.consumers.failures import exc_info_of, in_one_line
from tallystick.client.consumers.lanes import CLOSING_SECONDS, lane_for
from tallystick.client.consumers.marks import InboxRows
from tallystick.client.consumers.subscription import Poisonous, Subscription
from tallystick.client.transactions.producer import Producer
from tallystick.client.transactions.script import Script
from tallystick.core.errors import NotFound, StaleLease, TallystickError
from tallystick.core.ops import Ack, ClientOp, Nack, Renew
from tallystick.core.wire import ReceiveRequest

log = logging.getLogger("tallystick.client")

WAIT_SECONDS = 20.0
NOT_PREPARED_DELAY_MS = 500
NO_TOPIC_SECONDS = 0.5
REASON_LETTERS = 1_024
MOST_RECEIVED = 1_000
"""The most that a broker gives out at once."""


class _Held(Struct):
    """A message in this process's hands, and when its lease wants renewing."""

    broker: BrokerPeer
    message: Message
    renew_at: float
    settling: bool = False


_Settlement = tuple[BrokerPeer, ClientOp]


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
        self._waiting: deque[_Held] = deque()  # of those, the ones that no handler has taken yet
        self._free = subscription.concurrency
        self._freed = asyncio.Event()
        self._stopping = False

    def start(self) -> None:
        self._receiving.start(self._receive_from_all())
        self._receiving.start(repeat("renewing leases", self._renew))

    @property
    def is_current(self) -> bool:
        """Whether the caller is a handler of this consumer."""
        return self._handling.is_current() or self._lane.is_current

    async def drain(self, deadline: Deadline) -> None:
        """Take no more; finish what is being handled, give back what is not, acknowledge."""
        self._stopping = True
        await self._receiving.cancel(deadline.left_or(CLOSING_SECONDS))
        self._give_back()
        renewing = Tasks()
        renewing.start(repeat("renewing leases", self._renew))
        try:
            await self._handling.wait(deadline.left())
        finally:
            await renewing.cancel(CLOSING_SECONDS)

    def _give_back(self) -> None:
        """Return what no handler has begun: all handlers may be stuck, and the leases would run to their end."""
        waiting = list(self._waiting)
        self._waiting.clear()
        settlements: list[_Settlement] = []
        for broker in self._brokers:
            if receipts := [held.message.receipt for held in waiting if held.broker is broker]:
                settlements.append((broker, Nack(self._subscription.group, receipts, delay_ms=0)))
        for held in waiting:
            held.settling = True
        if settlements:
            self._handling.start(self._settle(waiting, settlements))

    async def end(self, deadline: Deadline) -> None:
        """Cancel what is still being handled, and close the connections of the handlers."""
        await self._handling.cancel(deadline.left())
        await self._lane.close(deadline.left())

    # Receiving

    async def _receive_from_all(self) -> None:
        refusals = Refusals(f"receiving for {self._subscription.name}")
        for broker in await self._brokers.known():
            what = f"receiving for {self._subscription.name} from {broker.address}"
            self._receiving.start(repeat(what, self._receive(broker), refusals, broker.address))

    def _receive(self, broker: BrokerPeer) -> Callable[[], Awaitable[float]]:
        subscription = self._subscription
        most = max(1, subscription.in_hand // len(self._brokers))
        request = ReceiveRequest(
            subscription.topic,
            min(most, MOST_RECEIVED),
            round(WAIT_SECONDS * 1000),
            round(subscription.invisible * 1000),
            subscription.ordered,
            subscription.start,
            list(subscription.tags) if subscription.tags is not None else None,
            self._member,
        )

        async def once() -> float:
            request.max = min(await self._room(broker, most), MOST_RECEIVED)
            asked_at = self._loop.time()
            try:
                messages = await questions.receive(broker, subscription.group, request)
            except NotFound:
                return NO_TOPIC_SECONDS  # it may come into being later
            self._take(broker, messages, asked_at)
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

    def _take(self, broker: BrokerPeer, messages: Sequence[Message], asked_at: float) -> None:
        for message in messages:
            held = _Held(broker, message, asked_at + self._subscription.invisible / 2)
            self._held[message.receipt] = held
            self._waiting.append(held)
        for _ in range(min(self._free, len(self._waiting))):
            self._free -= 1
            self._handling.start(self._work())

    # Handling

    async def _work(self) -> None:
        """Handle what is waiting, a batch at a time, until there is nothing more."""
        try:
            while self._waiting:
                try:
                    await self._handle(self._next_batch())
                except Exception as failure:  # those that wait must not wait for ever because of it
                    log.error("%s: messages were not settled", self._subscription.name, exc_info=failure)
        finally:
            self._free += 1

    def _next_batch(self) -> list[_Held]:
        """What is handled together. A message that comes again is handled by itself: it may be the one that failed."""
        batch = [self._waiting.popleft()]
        while self._waiting and len(batch) < self._subscription.batch:
            if batch[0].message.attempt > 1 or self._waiting[0].message.attempt > 1:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _handle(self, batch: list[_Held]) -> None:
        try:
            settlements = await self._settlements(batch)
        except BaseException:
            self._let_go(batch)
            raise
        # From here on the leases are of no use: a renewal could only come after the ack, and find nothing.
        for held in batch:
            held.settling = True
        self._handling.start(self._settle(batch, settlements))  # meanwhile the next batch is handled

    async def _settle(self, batch: list[_Held], settlements: list[_Settlement]) -> None:
        try:
            await asyncio.gather(*(self._tell(broker, op) for broker, op in settlements))
        finally:
            self._let_go(batch)

    def _let_go(self, batch: list[_Held]) -> None:
        for held in batch:
            del self._held[held.message.receipt]
        self._freed.set()

    async def _settlements(self, batch: list[_Held]) -> list[_Settlement]:
        """Handle the messages; how the brokers are to settle them."""
        settlements: list[_Settlement] = []
        done: list[_Held] = []
        for part in await self._as_one(batch, done):
            if (nack := await self._try(part, done)) is not None:
                settlements.append((part.broker, nack))
        for broker in self._brokers:
            if receipts := [held.message.receipt for held in done if held.broker is broker]:
                settlements.append((broker, Ack(self._subscription.group, receipts)))
        return settlements

    async def _as_one(self, batch: list[_Held], done: list[_Held]) -> list[_Held]:
        """Handle several messages in one transaction; those that have to be handled one by one, all of them or none."""
        if len(batch) == 1 or self._stopping:
            return batch
        try:
            await self._play(batch, done)
        except (_Stopped, OneByOne):
            return batch
        except Exception as failure:
            # Nothing of it is committed, or what is has its rows. Which message it was is found by the way.
            self._stats.batches_undone += 1
            what = f"{self._subscription.name}: a batch of {len(batch)} messages"
            log.info("%s was undone, they are handled one by one: %s", what, failure)
            return batch
        return []

    async def _try(self, held: _Held, done: list[_Held]) -> Nack | None:
        """Handle one message; if it was in vain, what the broker is to be told."""
        group, receipts = self._subscription.group, [held.message.receipt]
        try:
            await self._play([held], done)
        except _Stopped:
            return Nack(group, receipts, delay_ms=0)
        except NotPreparedYet as early:
            return Nack(group, receipts, delay_ms=NOT_PREPARED_DELAY_MS, reason=str(early))
        except Poisonous as poison:
            return self._dead(held.message, poison)
        except Exception as failure:
            return self._failed(held.message, failure)
        return None

    async def _play(self, batch: list[_Held], done: list[_Held]) -> None:
        messages = [held.message for held in batch]
        verdicts = await self._lane.play(lambda desk: self._script(messages, desk))
        done += batch
        self._stats.handled += verdicts.count(Handling.HANDLED)
        self._stats.duplicates += verdicts.count(Handling.DUPLICATE)

    def _script(self, messages: list[Message], desk: Desk) -> Script[list[Handling]]:
        if self._stopping:
            raise _Stopped
        if self._subscription.exactly_once is None:
            return handle_plainly(self._subscription, messages)
        marks = InboxRows(self._subscription.group)
        return handle_once(self._subscription, messages, desk, self._producer, marks)

    def _failed(self, message: Message, failure: Exception) -> Nack:
        subscription = self._subscription
        self._stats.handler_failures += 1
        most = subscription.max_attempts
        dead = most is not None and message.attempt >= most
        log.warning(
            "%s: message %s failed at attempt %d%s: %s",
            subscription.name,
            message.id,
            message.attempt,
            ", the last one" if dead else "",
            in_one_line(failure),
            exc_info=exc_info_of(failure),
        )
        reason = f"{type(failure).__name__}: {failure}"[:REASON_LETTERS]
        return Nack(subscription.group, [message.receipt], dead=dead, reason=reason)

    def _dead(self, message: Message, poison: Poisonous) -> Nack:
        """Another try would end in the same way, so it goes to the dead-letter topic at once."""
        self._stats.undecodable += 1
        log.error("%s: %s; it goes to the dead-letter topic", self._subscription.name, poison)
        reason = str(poison)[:REASON_LETTERS]
        return Nack(self._subscription.group, [message.receipt], dead=True, reason=reason)

    async def _tell(self, broker: BrokerPeer, op: ClientOp) -> None:
        try:
            await broker.ops.run(op, self._timeout, waits=True)
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
            renewal = Renew(self._subscription.group, receipts, round(invisible * 1000))
            await broker.ops.run(renewal, self._timeout, waits=True)
        except StaleLease as error:
            # What was settled while the renewal was on its way has lost nothing.
            stale = error.extra.get("stale", receipts)
            if any(held.message.receipt in stale and not held.settling for held in due):
                log.info("%s: a lease had passed to another consumer", self._subscription.name)
        except TallystickError as error:
            log.warning("%s: leases could not be renewed: %s", self._subscription.name, error)


class _Stopped(Exception):
    """The consumer stops before this message was begun."""
