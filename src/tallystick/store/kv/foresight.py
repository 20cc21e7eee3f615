"""Which keys an operation will look at, so that an engine that is far away brings those of a whole group commit in one
round trip.

Nothing depends on it but the number of round trips: what was not foreseen is asked for when it is needed. That is so
for what only a look can tell (the chunk of a message that ends in the dead-letter topic, the parts of a commit).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from tallystick.core import ops
from tallystick.core.errors import InvalidRequest
from tallystick.store import protocol
from tallystick.store.kv import checks, keys, leases, places
from tallystick.store.kv.batch import Batch, Look, by_area
from tallystick.store.kv.catalog import Topic
from tallystick.store.kv.engine import Wanted
from tallystick.store.protocol import StoreOp


def foreseen(batch: Batch, wanted: Sequence[StoreOp]) -> Wanted:
    """What these operations will look at first, by area."""
    return by_area(look for op in wanted for look in _looks(batch, op))


def _looks(batch: Batch, op: StoreOp) -> Iterable[Look]:
    look = _LOOKS.get(type(op))
    return () if look is None else look(batch, op)


def _wrapped(batch: Batch, op: protocol.Guarded | protocol.Audited) -> Iterator[Look]:
    if isinstance(op, protocol.Guarded) and (gid := getattr(op.op, "gid", None)) is not None:
        yield from batch.looks_at(gid, checked=False)
    yield from _looks(batch, op.op)


def _prepare(batch: Batch, op: ops.Prepare) -> Iterator[Look]:
    yield from batch.looks_at(op.gid, checked=False)
    yield from _new_topics(batch, (message.topic for message in op.messages))


def _resolving(batch: Batch, op: ops.Commit | ops.Rollback | protocol.OperatorResolve) -> Iterator[Look]:
    return batch.looks_at(op.gid, checked=True)


def _send(batch: Batch, op: ops.Send) -> Iterator[Look]:
    if op.gid is not None:
        yield from batch.looks_at(op.gid, checked=False)
    yield from _new_topics(batch, (message.topic for message in op.messages))


def _part(batch: Batch, op: ops.PreparePart) -> Iterator[Look]:
    yield "tx", keys.PART.key(op.part, op.index)
    yield from _new_topics(batch, (message.topic for message in op.messages))


def _columns(batch: Batch, op: ops.PrepareColumns) -> Iterator[Look]:
    yield "tx", keys.PART.key(op.part, op.index)
    yield from _new_topics(batch, op.topics)


def _batch(batch: Batch, op: ops.CommitBatch) -> Iterator[Look]:
    yield "index", keys.APP.key(op.app)
    yield "tx", keys.TRANSACTION.key(op.gid)


def _receive(batch: Batch, op: protocol.Receive) -> Iterator[Look]:
    topic, group = batch.catalog.topics.get(op.topic), batch.catalog.groups.get(op.group)
    if topic is not None and group is not None:
        yield from _cursors(keys.group_topic(group, topic.id), topic)


def _cursors(gt: bytes, topic: Topic) -> Iterator[Look]:
    return (("index", key) for key in places.cursors(gt, topic.queues))


def _receipts(batch: Batch, op: ops.Ack | ops.Nack | ops.Renew) -> Iterator[Look]:
    try:
        for gt, queue, offset in leases.named(batch, op.group, op.receipts):
            yield "index", keys.LEASE.key(gt, queue, offset)
            yield "index", keys.CURSOR.key(gt, queue)
    except InvalidRequest:
        return  # the operation will be refused


def _stored_offsets(batch: Batch, op: ops.CommitOffsets) -> Iterator[Look]:
    topic = batch.catalog.topics.get(op.topic)
    if topic is not None:
        gt = keys.group_topic(batch.catalog.groups.get(op.group, 0), topic.id)
        yield from _cursors(gt, topic)
        for queue in op.offsets if op.expected is not None else ():
            if 0 <= queue < topic.queues:
                yield "index", keys.STORED.key(gt, queue)


def _answered(batch: Batch, op: ops.AnswerChecks) -> Iterator[Look]:
    """As many as are read at a time: one operation may answer for thousands."""
    for gid in islice(op.answers, checks.READ_AT_ONCE):
        yield "tx", keys.TRANSACTION.key(gid)
        yield "index", keys.CHECK.key(gid)


def _unanswered(batch: Batch, op: protocol.FailChecks) -> Iterator[Look]:
    for gid in op.errors:
        yield from batch.looks_at(gid, checked=True)


def _called(batch: Batch, op: protocol.FinishCalls) -> Iterator[Look]:
    for result in op.results:
        yield "index", keys.CALLS_STATE.key(result.gid)


def _new_topics(batch: Batch, names: Iterable[str]) -> Iterator[Look]:
    known = batch.catalog.topics
    for name in names:
        if name not in known:
            yield "index", keys.ENDED.key(name)


_LOOKS: dict[type, Callable[[Batch, Any], Iterator[Look]]] = {
    ops.Prepare: _prepare,
    ops.Commit: _resolving,
    ops.Rollback: _resolving,
    ops.Send: _send,
    ops.PreparePart: _part,
    ops.PrepareColumns: _columns,
    ops.CommitBatch: _batch,
    ops.Ack: _receipts,
    ops.Nack: _receipts,
    ops.Renew: _receipts,
    ops.CommitOffsets: _stored_offsets,
    ops.AnswerChecks: _answered,
    protocol.OperatorResolve: _resolving,
    protocol.Receive: _receive,
    protocol.FailChecks: _unanswered,
    protocol.FinishCalls: _called,
    protocol.Guarded: _wrapped,
    protocol.Audited: _wrapped,
}
