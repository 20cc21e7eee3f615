"""Moving a consumer group: to the offsets that it stores as it reads, or by hand to another place of a topic."""

from __future__ import annotations

from tallystick.core.errors import Conflict, InvalidRequest, NotFound, OffsetMoved, OffsetOutOfRange
from tallystick.core.ops import CommitOffsets, OpResult
from tallystick.store.kv import keys, leases, places, topics
from tallystick.store.kv.batch import Batch
from tallystick.store.kv.catalog import Topic
from tallystick.store.kv.reader import QueueReader
from tallystick.store.protocol import ResetGroup


def commit(batch: Batch, op: CommitOffsets) -> OpResult | None:
    topic = topics.known(batch.catalog, op.topic)
    gt = keys.group_topic(batch.catalog.groups.get(op.group, 0), topic.id)  # no group has the id 0
    if places.has_begun(batch, gt, topic.queues):
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
        current = max(start, places.offset(batch, gt, queue) or 0)
        if current != max(start, op.expected.get(queue, 0)):
            raise OffsetMoved(
                f"group {op.group!r} is at {current} of {op.topic}/{queue}, not at {op.expected.get(queue, 0)}",
                field="expected",
            )
    gt = keys.group_topic(places.group_id(batch, op.group), topic.id)
    for queue, offset in op.offsets.items():
        places.store_offset(batch, gt, queue, offset, op.mirror)
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


# --- by hand -------------------------------------------------------------------------------------------------------


def reset(batch: Batch, op: ResetGroup, reader: QueueReader) -> None:
    topic = topics.known(batch.catalog, op.topic)
    targets = _targets(batch, op, topic, reader)
    for queue, offset in targets.items():
        check_offset(batch, topic, queue, offset)
    gt = keys.group_topic(batch.catalog.groups.get(op.group, 0), topic.id)  # no group has the id 0
    if places.has_begun(batch, gt, topic.queues):
        for queue, offset in targets.items():
            leases.move(batch, gt, queue, offset)
        return
    mirrored = places.mirrored(batch, gt)
    if mirrored is None:
        raise NotFound(
            f"group {op.group!r} has no place in topic {op.topic!r} yet; it gets one with its first receive or when it "
            "stores its offsets",
            field="group",
        )
    if mirrored:
        raise Conflict(
            f"group {op.group!r} keeps its offsets of {op.topic!r} in its own database and only shows them here; "
            "change the rows of its table tallystick_offset there",
            field="group",
        )
    for queue, offset in targets.items():
        places.store_offset(batch, gt, queue, offset)


def _targets(batch: Batch, op: ResetGroup, topic: Topic, reader: QueueReader) -> dict[int, int]:
    """The offset of each queue that the group is to go on from."""
    if [op.to is None, op.offsets is None, op.timestamp is None].count(False) != 1:
        raise InvalidRequest("say where to, by one of to (earliest or latest), offsets (by queue) and timestamp")
    if op.offsets is not None:
        if not op.offsets:
            raise InvalidRequest("offsets: name at least one queue", field="offsets")
        return op.offsets
    starts = {queue: batch.catalog.starts.get((topic.id, queue), 0) for queue in range(topic.queues)}
    if op.timestamp is not None:
        return {queue: reader.offset_at(topic, queue, start, op.timestamp) for queue, start in starts.items()}
    if op.to == "earliest":
        return starts
    return {queue: batch.catalog.ends.get((topic.id, queue), 0) for queue in starts}
