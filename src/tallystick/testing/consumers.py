"""Consumers that stop when there is nothing left: the handlers of a client, called here and now.

Messages are received, handled and acknowledged by the same code as in a running consumer; what is missing are its
threads, its waiting, and its patience with errors.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from tallystick.barrier.adapters.base import Adapter, AsyncAdapter, Managed, SyncAdapter
from tallystick.barrier.adapters.recognition import adapt, adapt_sync
from tallystick.barrier.operations.inbox import read_offset
from tallystick.barrier.runner import run_async, run_sync
from tallystick.client.async_client import AsyncClient
from tallystick.client.base.message import Message
from tallystick.client.client import Client
from tallystick.client.consumers.effects import (
    Desk,
    Handling,
    begin_at_ends,
    handle_once,
    handle_plainly,
    move_offset,
    together,
)
from tallystick.client.consumers.marks import GroupQueue, InboxRows, Marks, OffsetRow
from tallystick.client.consumers.subscription import Poisonous, Subscription
from tallystick.client.seam import ClientSeam, seam_of
from tallystick.client.transactions.script import OnLoop, Script
from tallystick.core.errors import NotFound, OffsetMoved
from tallystick.core.wire import TopicView

AT_ONCE = 500


class ReadOffset(NamedTuple):
    """Read the group's offset on the handler's connection, without a commit.

    The connection is the handler's, because a test may never commit; then no other connection sees its offsets. It is
    no script, because `crash_at` would count its begin as the begin of a block.
    """

    place: GroupQueue


Work = Generator[OnLoop | ReadOffset | Script[Any], Any, int]
"""Steps on the client's event loop and scripts of one local transaction; returns how many messages were handled."""


def drain(client: Client, arrive: Callable[[], None], twice: bool) -> int:
    seam = seam_of(client)

    def once(subscription: Subscription) -> int:
        desk = _opened_sync(subscription)
        work = _work(seam, subscription, desk, twice)
        try:
            return _carried_out(work, lambda step: _do_sync(seam, step, desk))
        finally:
            if desk is not None:
                desk.adapter.close()

    total = 0
    while True:
        arrive()  # what the handlers before have sent
        handled = sum(once(subscription) for subscription in client._subscriptions)
        if not handled:
            return total
        total += handled


async def adrain(client: AsyncClient, arrive: Callable[[], None], twice: bool) -> int:
    seam = seam_of(client)

    async def once(subscription: Subscription) -> int:
        desk = await _opened(subscription)
        work = _work(seam, subscription, desk, twice)
        try:
            return await _carried_out_async(work, seam, desk)
        finally:
            closing = None if desk is None else desk.adapter.close()
            if inspect.isawaitable(closing):
                await closing

    total = 0
    while True:
        arrive()
        handled = 0
        for subscription in client._subscriptions:
            handled += await once(subscription)
        if not handled:
            return total
        total += handled


# On a thread, and on an event loop


def _carried_out(work: Work, do: Callable[[Any], Any]) -> int:
    try:
        step = next(work)
        while True:
            try:
                result = do(step)
            except BaseException as failure:
                step = work.throw(failure)
            else:
                step = work.send(result)
    except StopIteration as end:
        return int(end.value)


async def _carried_out_async(work: Work, seam: ClientSeam, desk: Desk | None) -> int:
    try:
        step = next(work)
        while True:
            try:
                result = await _do(seam, step, desk)
            except BaseException as failure:
                step = work.throw(failure)
            else:
                step = work.send(result)
    except StopIteration as end:
        return int(end.value)


def _do_sync(seam: ClientSeam, step: OnLoop | ReadOffset | Script[Any], desk: Desk | None) -> Any:
    if isinstance(step, ReadOffset):
        return _read_offset(cast(SyncAdapter, _adapter(desk)), step.place)
    return seam.call(step.call) if isinstance(step, OnLoop) else seam.play_sync(step, _adapter(desk))


async def _do(seam: ClientSeam, step: OnLoop | ReadOffset | Script[Any], desk: Desk | None) -> Any:
    if isinstance(step, ReadOffset):
        adapter = cast(Adapter, _adapter(desk))
        return await _aread_offset(adapter, step.place) if adapter.is_async else _read_offset(adapter, step.place)
    return await (step.call() if isinstance(step, OnLoop) else seam.play_async(step, _adapter(desk)))


def _read_offset(adapter: SyncAdapter, place: GroupQueue) -> int | None:
    ends = _ends_after_read(adapter)
    adapter.begin()
    try:
        return run_sync(adapter, read_offset(*msgspec.structs.astuple(place)))
    finally:
        if ends:
            adapter.rollback()


async def _aread_offset(adapter: AsyncAdapter, place: GroupQueue) -> int | None:
    ends = _ends_after_read(adapter)
    await adapter.begin()
    try:
        return await run_async(adapter, read_offset(*msgspec.structs.astuple(place)))
    finally:
        if ends:
            await adapter.rollback()


def _ends_after_read(adapter: Adapter) -> bool:
    """Whether the read has its own transaction, or savepoint; what the test itself has begun must stay open."""
    return isinstance(adapter, Managed) or not adapter.in_transaction


def _adapter(desk: Desk | None) -> Adapter | None:
    return None if desk is None else desk.adapter


def _opened_sync(subscription: Subscription) -> Desk | None:
    if subscription.exactly_once is None:
        return None
    connection = subscription.exactly_once()
    return Desk(connection, adapt_sync(connection))


async def _opened(subscription: Subscription) -> Desk | None:
    if subscription.exactly_once is None:
        return None
    connection = subscription.exactly_once()
    if inspect.isawaitable(connection):
        connection = await connection
    return Desk(connection, adapt(connection))


# What is done with the messages of one subscription


def _work(seam: ClientSeam, subscription: Subscription, desk: Desk | None, twice: bool) -> Work:
    if subscription.by == "offset" and desk is not None:
        return _by_offset(seam, subscription, desk, twice)
    return _by_lease(seam, subscription, desk, twice)


def _by_lease(seam: ClientSeam, subscription: Subscription, desk: Desk | None, twice: bool) -> Work:
    broker, group, handled = seam.operations, subscription.group, 0
    while True:
        messages = yield OnLoop(lambda: _received(seam, subscription))
        if not messages:
            return handled
        left = list(messages)
        batches = deque(_batches(messages, subscription, desk))
        while batches:
            batch = batches.popleft()
            try:
                verdicts = yield _handled(seam, subscription, batch, desk, InboxRows(group))
            except BaseException as failure:
                # As a running consumer does: the message that failed is found by itself, and the others keep their
                # effects. A simulated crash is no failure of a message.
                if len(batch) > 1 and isinstance(failure, Exception):
                    batches.extendleft([message] for message in reversed(batch))
                    continue
                if isinstance(failure, Poisonous):
                    yield OnLoop(partial(broker.nack, group, batch, dead=True, reason=str(failure)))
                    left = left[1:]
                    continue
                # They come again: at once, where a running consumer would wait, or its lease would have to run out.
                if subscription.max_attempts is not None and batch[0].attempt >= subscription.max_attempts:
                    yield OnLoop(partial(broker.nack, group, batch, dead=True))
                    left = left[len(batch) :]
                if left:
                    yield OnLoop(partial(broker.nack, group, left, delay=0))
                raise
            handled += verdicts.count(Handling.HANDLED)
            if twice and batch[0].attempt == 1:
                yield OnLoop(partial(broker.nack, group, batch, delay=0))
            else:
                yield OnLoop(partial(broker.ack, group, batch))
            left = left[len(batch) :]


async def _received(seam: ClientSeam, subscription: Subscription) -> list[Message]:
    try:
        return await seam.operations.receive(
            subscription.topic,
            subscription.group,
            max=AT_ONCE,
            invisible=subscription.invisible,
            ordered=subscription.ordered,
            start=subscription.start,
            tags=subscription.tags,
        )
    except NotFound:  # nothing was ever sent there
        return []


def _handled(
    seam: ClientSeam, subscription: Subscription, batch: Sequence[Message], desk: Desk | None, marks: Marks
) -> Script[list[Handling]]:
    if desk is None:
        return handle_plainly(subscription, batch)
    return handle_once(subscription, batch, desk, seam.producer(), marks)


def _by_offset(seam: ClientSeam, subscription: Subscription, desk: Desk, twice: bool) -> Work:
    view = yield OnLoop(lambda: _topic(seam, subscription))
    if view is None:
        return 0
    store, handled = (yield OnLoop(seam.operations.info)).store, 0
    for queue in range(view.queues):
        place = GroupQueue(subscription.group, store, subscription.topic, queue)
        reading = _queue(seam, subscription, desk, place, view, twice)
        handled += yield from reading
    return handled


async def _topic(seam: ClientSeam, subscription: Subscription) -> TopicView | None:
    try:
        return await seam.operations.topic(subscription.topic)
    except NotFound:
        return None


def _queue(
    seam: ClientSeam, subscription: Subscription, desk: Desk, place: GroupQueue, view: TopicView, twice: bool
) -> Work:
    # On the handler's connection: a test may never commit, and then no other connection sees its offsets.
    stored = yield ReadOffset(place)
    if stored is None and subscription.start == "latest":
        stored = yield begin_at_ends(desk, place, view.ends)
    offset = view.starts[place.queue] if stored is None else stored
    fetched = yield OnLoop(lambda: seam.operations.fetch(place.topic, place.queue, offset, max=AT_ONCE))
    tags, handled = subscription.tags, 0
    wanted = [message for message in fetched.messages if tags is None or message.tag in tags]
    batches = deque(_batches(wanted, subscription, desk))
    while batches:
        batch, before = batches.popleft(), stored
        try:
            verdicts = yield handle_once(subscription, batch, desk, seam.producer(), OffsetRow(place, before))
        except OffsetMoved:
            raise
        except Exception:
            if len(batch) == 1:
                raise
            batches.extendleft([message] for message in reversed(batch))
            continue
        stored = batch[-1].offset + 1
        handled += verdicts.count(Handling.HANDLED)
        if twice:
            yield from _second_reader(seam, subscription, desk, batch, OffsetRow(place, before))
    if fetched.next > (offset if stored is None else stored):
        yield move_offset(desk, place, stored, fetched.next)  # past what the tags left out
    return handled


def _second_reader(
    seam: ClientSeam, subscription: Subscription, desk: Desk, batch: Sequence[Message], marks: OffsetRow
) -> Work:
    """Another consumer of the queue, which has read the same messages: the offset tells it that it is late."""
    try:
        yield handle_once(subscription, batch, desk, seam.producer(), marks)
    except OffsetMoved:
        return 0
    raise AssertionError(f"{subscription.name}: the same messages were handled twice, by two consumers of their queue")


def _batches(messages: Sequence[Message], subscription: Subscription, desk: Desk | None) -> Iterator[list[Message]]:
    size = subscription.batch if desk is None or together(subscription, desk.adapter) else 1
    for begin in range(0, len(messages), size):
        yield list(messages[begin : begin + size])
