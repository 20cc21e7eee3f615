"""Queues read in order, with the group's offset kept in the consumer's own database beside the effects."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from tallystick.client.base.deadlines import Deadline
from tallystick.client.base.message import Message
from tallystick.client.base.refusals import SLOWLY, Refusals, TurnedAway
from tallystick.client.base.tasks import RETRY, Tasks, repeat
from tallystick.client.connection import questions
from tallystick.client.connection.loop_connection import LoopConnection
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.connection.questions import Fetched
from tallystick.client.connection.waiting import Answered
from tallystick.client.consumers.effects import (
    Handling,
    OneByOne,
    begin_at_ends,
    handle_once,
    move_offset,
    stored_offset,
)
from tallystick.client.consumers.failures import exc_info_of, in_one_line
from tallystick.client.consumers.lanes import CLOSING_SECONDS, lane_for
from tallystick.client.consumers.marks import GroupQueue, OffsetRow
from tallystick.client.consumers.subscription import Subscription
from tallystick.client.transactions.producer import Producer
from tallystick.core.errors import BrokerUnavailable, Moved, NotFound, OffsetMoved, OffsetOutOfRange
from tallystick.core.ops import CommitOffsets

log = logging.getLogger("tallystick.client")

T = TypeVar("T")

WAIT_SECONDS = 20.0
LOOK_FOR_QUEUES_SECONDS = 30.0
NO_TOPIC_SECONDS = 0.5
FETCH_MESSAGES, FETCH_BATCHES = 200, 5
# After losing a race for a message, the loser lets the winner go ahead instead of racing for the next one at once.
STEP_BACK_SECONDS = 0.2


class OffsetConsumer:
    """One subscription on all brokers, one reader a queue."""

    def __init__(self, subscription: Subscription, connection: LoopConnection, producer: Producer) -> None:
        self._subscription = subscription
        self._producer = producer
        self._brokers = connection.brokers
        self._timeout = connection.settings.timeout
        self._stats = connection.stats
        self._lane = lane_for(subscription, connection.turn)
        self._looking = Tasks()
        self._reading = Tasks()
        self._queues: set[tuple[str, int]] = set()
        self._refusals = Refusals(f"reading for {subscription.name}")
        self._stopping = asyncio.Event()

    def start(self) -> None:
        self._looking.start(self._look_at_all())

    async def _look_at_all(self) -> None:
        for broker in await self._brokers.known():
            what = f"looking for {self._subscription.topic}"
            self._looking.start(repeat(what, self._look(broker), self._refusals, broker.address))

    @property
    def is_current(self) -> bool:
        """Whether the caller is a handler of this consumer."""
        return self._reading.is_current() or self._lane.is_current

    async def drain(self, deadline: Deadline) -> None:
        """Finish the messages at hand and read no further."""
        self._stopping.set()
        await self._looking.cancel(deadline.left_or(CLOSING_SECONDS))
        await self._reading.wait(deadline.left())

    async def end(self, deadline: Deadline) -> None:
        """Cancel what is still being handled, and close the connections of the handlers."""
        await self._reading.cancel(deadline.left())
        await self._lane.close(deadline.left())

    def _look(self, broker: BrokerPeer) -> Callable[[], Awaitable[float]]:
        """Start a reader for each queue; a topic may come into being later, and its queues may grow in number."""

        async def once() -> float:
            try:
                view = await questions.topic(broker, self._subscription.topic, self._timeout)
            except NotFound:
                return NO_TOPIC_SECONDS
            for queue in range(view.queues):
                if (broker.address, queue) not in self._queues:
                    self._queues.add((broker.address, queue))
                    self._reading.start(self._follow(broker, queue))
            return LOOK_FOR_QUEUES_SECONDS

        return once

    async def _follow(self, broker: BrokerPeer, queue: int) -> None:
        """Read a queue until the end of the subscription, beginning again at the stored offset after any failure."""
        failures = 0
        while not self._stopping.is_set():
            reader = _Reader(self, broker, queue, failures + 1)
            try:
                await reader.read()
            except _OtherStore as other:
                log.warning("%s: %s", self._subscription.name, other)
            except OffsetMoved as moved:
                log.debug("%s: %s", self._subscription.name, moved)
                await self.pause(STEP_BACK_SECONDS * random.random())  # noqa: S311 - spreads load only
            except TurnedAway:
                failures = 1 if reader.progress else failures + 1
                await self.pause(SLOWLY.wait_ms(failures) / 1000)
            except Exception as failure:
                failures = 1 if reader.progress else failures + 1
                wait = RETRY.wait_ms(failures) / 1000
                what = f"{self._subscription.name}: queue {queue} of {broker.address}"
                # Where it was raised is of interest only if it may be the handler's doing.
                shown = None if isinstance(failure, BrokerUnavailable | Moved) else exc_info_of(failure)
                level = logging.DEBUG if isinstance(failure, Moved) else logging.WARNING
                log.log(level, "%s stopped, again in %.1f s: %s", what, wait, in_one_line(failure), exc_info=shown)
                await self.pause(wait)

    async def pause(self, seconds: float) -> None:
        await self.unless_stopped(asyncio.sleep(seconds))

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None as soon as the consumer stops."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stopping.cancel()


class _Reader:
    """One reading of one queue, from the stored offset to the first failure."""

    def __init__(self, consumer: OffsetConsumer, broker: BrokerPeer, queue: int, attempt: int) -> None:
        self._refusals, self._name = consumer._refusals, f"queue {queue} of {broker.address}"
        self._consumer = consumer
        self._subscription = consumer._subscription
        self._producer = consumer._producer
        self._lane = consumer._lane
        self._stats = consumer._stats
        self._timeout = consumer._timeout
        self._broker = broker
        self._queue = queue
        self._attempt = attempt
        self._at_once = max(FETCH_MESSAGES, FETCH_BATCHES * self._subscription.batch)
        self._stored: int | None = None
        self._shown: int | None = None  # to the broker, which has confirmed it
        self.progress = False

    async def read(self) -> None:
        with self._refusals.told(self._name):  # what handlers raise is theirs, though it may look the same
            place, offset = await self._place()
            fetched = await self._consumer.unless_stopped(self._fetch(place, offset))
        while fetched is not None:
            _check_store(place, fetched.store)
            for batch in self._batches(fetched.messages):
                if self._consumer._stopping.is_set():
                    return
                await self._handle(place, batch)
            if fetched.next > max(offset, self._stored or 0):
                await self._move(place, fetched.next)  # past messages that the tags left out
            if self._stored not in (None, self._shown):
                self._show_progress(place, self._stored)
            offset = fetched.next
            with self._refusals.told(self._name):
                fetched = await self._consumer.unless_stopped(self._fetch(place, offset))

    async def _place(self) -> tuple[GroupQueue, int]:
        """The group's place in this queue, and the offset to begin at."""
        store = await self._broker.known_store()
        place = GroupQueue(self._subscription.group, store, self._subscription.topic, self._queue)
        self._stored = await self._lane.play(lambda desk: stored_offset(desk, place))
        return place, await self._begin(place) if self._stored is None else self._stored

    async def _begin(self, place: GroupQueue) -> int:
        """The offset of a group that has none in this queue."""
        _check_store(place, (await self._broker.info()).store)
        view = await questions.topic(self._broker, place.topic, self._timeout)
        if self._subscription.start == "latest":
            self._stored = await self._lane.play(lambda desk: begin_at_ends(desk, place, view.ends))
        return view.starts[place.queue] if self._stored is None else self._stored

    async def _fetch(self, place: GroupQueue, offset: int) -> Fetched:
        try:
            return await questions.fetch(
                self._broker, place.topic, place.queue, offset, self._at_once, WAIT_SECONDS, self._timeout
            )
        except OffsetOutOfRange as lost:
            _check_store(place, (await self._broker.info()).store)  # then it is no offset of this store at all
            if self._subscription.on_trimmed == "stop":
                raise OffsetOutOfRange(
                    f"{lost.detail}. Messages were removed before this group read them; to go on without them, "
                    "subscribe with on_trimmed='skip'"
                ) from lost
            view = await questions.topic(self._broker, place.topic, self._timeout)
            start = view.starts[place.queue]
            log.error("%s: offsets %d to %d are lost, skipping them", self._subscription.name, offset, start - 1)
            return Fetched([], start, view.ends[place.queue], place.store)

    def _batches(self, fetched: list[Message]) -> Iterator[list[Message]]:
        """What is handled together. A message that comes again is handled by itself: it may be the one that failed."""
        tags = self._subscription.tags
        wanted = [message for message in fetched if tags is None or message.tag in tags]
        begin = 0
        while begin < len(wanted):
            end = begin + (self._subscription.batch if self._attempt == 1 else 1)
            yield wanted[begin:end]
            begin = end

    async def _handle(self, place: GroupQueue, batch: list[Message]) -> None:
        if len(batch) == 1 or not await self._as_one(place, batch):
            for message in batch:
                if self._consumer._stopping.is_set():
                    return
                await self._try(place, message)

    async def _as_one(self, place: GroupQueue, batch: list[Message]) -> bool:
        """Handle several messages in one transaction; False if they have to be handled one by one."""
        try:
            await self._play(place, batch)
        except OffsetMoved:
            raise
        except OneByOne:
            return False
        except Exception as failure:
            # Nothing of it is committed, or what is has moved the offset. Which message it was is found by the way.
            self._stats.batches_undone += 1
            what = f"{self._subscription.name}: a batch of {len(batch)} messages"
            log.info("%s was undone, they are handled one by one: %s", what, failure)
            return False
        return True

    async def _try(self, place: GroupQueue, message: Message) -> None:
        try:
            await self._play(place, [message])
        except OffsetMoved:
            raise
        except Exception:
            self._stats.handler_failures += 1
            raise

    async def _play(self, place: GroupQueue, batch: list[Message]) -> None:
        for message in batch:
            message.attempt = self._attempt
        stored = self._stored
        verdicts = await self._lane.play(
            lambda desk: handle_once(self._subscription, batch, desk, self._producer, OffsetRow(place, stored))
        )
        self._stored = batch[-1].offset + 1
        self._attempt, self.progress = 1, True
        self._stats.handled += verdicts.count(Handling.HANDLED)
        self._stats.duplicates += verdicts.count(Handling.DUPLICATE)

    async def _move(self, place: GroupQueue, to: int) -> None:
        stored = self._stored
        await self._lane.play(lambda desk: move_offset(desk, place, stored, to))
        self._stored = to

    def _show_progress(self, place: GroupQueue, offset: int) -> None:
        """Tell the broker too, for its figures of lag. The offset that counts is the one in the database. What it has
        not confirmed is told again after the next fetch: otherwise a group that has read everything would seem to be
        behind until the next message comes."""

        def told(answered: Answered) -> None:
            if answered.cancelled():
                return
            if (error := answered.exception()) is None:
                self._shown = offset
            else:
                log.debug("an offset could not be shown: %s", error)

        op = CommitOffsets(place.group, place.topic, {place.queue: offset}, mirror=True)
        self._broker.ops.submit(op, self._timeout, waits=True).add_done_callback(told)


class _OtherStore(Exception):
    """The broker's data directory was replaced. The group has a place of its own in each store."""


def _check_store(place: GroupQueue, store: str) -> None:
    if store != place.store:
        raise _OtherStore(f"{place.topic}/{place.queue} is read from store {store} now, no longer from {place.store}")
