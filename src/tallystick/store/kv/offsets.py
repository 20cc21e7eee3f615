"""Stored offsets of consumer groups that read by offset.

A stored offset is eight bytes; one more byte follows if the broker only shows what the consumer keeps elsewhere.
"""

from __future__ import annotations

from tallystick.core.errors import Conflict, InvalidRequest, OffsetMoved, OffsetOutOfRange
from tallystick.core.ops import CommitOffsets, OpResult
from tallystick.store.kv import keys, topics
from tallystick.store.kv.batch import Batch
from tallystick.store.kv.catalog import Topic
from tallystick.store.kv.leases import group_id, has_begun

_MIRROR = b"m"


def commit(batch: Batch, op: CommitOffsets) -> OpResult | None:
    topic = topics.known(batch.catalog, op.topic)
    gt = keys.group_topic(batch.catalog.groups.get(op.group, 0), topic.id)  # no group has the id 0
    if has_begun(batch, gt):
        raise Conflict(
            f"group {op.group!r} takes {op.topic!r} under leases, and its place moves with what it acknowledges; "
            f"to move it by hand, reset it: tallystick groups reset {op.group} --topic {op.topic}",
            field="group",
        )
    for queue, offset in op.offsets.items():
        # One that was trimmed meanwhile is no mistake of the consumer's, and as good as the start.
        check_offset(batch, topic, queue, max(offset, batch.catalog.starts.get((topic.id, queue), 0)))
        if op.expected is None:
            continue
        # What is no longer there is behind everybody: a group without a place is at the start, wherever that is.
        start = batch.catalog.starts.get((topic.id, queue), 0)
        current = max(start, stored(batch, gt, queue) or 0)
        if current != max(start, op.expected.get(queue, 0)):
            raise OffsetMoved(
                f"group {op.group!r} is at {current} of {op.topic}/{queue}, not at {op.expected.get(queue, 0)}",
                field="expected",
            )
    gt = keys.group_topic(group_id(batch, op.group), topic.id)
    for queue, offset in op.offsets.items():
        store(batch, gt, queue, offset, op.mirror)
    return None


def check_offset(batch: Batch, topic: Topic, queue: int, offset: int) -> None:
    """Refuse what is no place of the topic: a queue that it does not have, or an offset where nothing can be read."""
    if not 0 <= queue < topic.queues:
        raise InvalidRequest(f"offsets: topic {topic.name!r} has no queue {queue}", field="offsets")
    start, end = batch.catalog.starts.get((topic.id, queue), 0), batch.catalog.ends.get((topic.id, queue), 0)
    if not start <= offset <= end:
        raise OffsetOutOfRange(
            f"offsets: {offset} is outside of {topic.name}/{queue}, which holds {start} to {end}", field="offsets"
        )


def stored(batch: Batch, gt: bytes, queue: int) -> int | None:
    found = batch.get("index", keys.STORED.key(gt, queue))
    return None if found is None else keys.read_u64(found)


def store(batch: Batch, gt: bytes, queue: int, offset: int, mirror: bool = False) -> None:
    batch.put("index", keys.STORED.key(gt, queue), keys.u64(offset) + (_MIRROR if mirror else b""))


def mirrored(batch: Batch, gt: bytes) -> bool | None:
    """Whether the group's offsets of a topic are only shown here, at least in part; None if it has none."""
    found = [value[8:] == _MIRROR for _, value in batch.scan("index", *keys.STORED.of(gt))]
    return any(found) if found else None
