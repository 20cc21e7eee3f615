"""Stored offsets of consumer groups that read by offset."""

from __future__ import annotations

from tallystick.core.errors import InvalidRequest, OffsetMoved
from tallystick.core.ops import CommitOffsets, OpResult
from tallystick.store.kv import keys, topics
from tallystick.store.kv.batch import Batch
from tallystick.store.kv.leases import group_id


def commit(batch: Batch, op: CommitOffsets) -> OpResult | None:
    topic = topics.known(batch.catalog, op.topic)
    gt = keys.group_topic(batch.catalog.groups.get(op.group, 0), topic.id)  # no group has the id 0
    for queue, offset in op.offsets.items():
        end = batch.catalog.ends.get((topic.id, queue), 0)
        if not 0 <= queue < topic.queues:
            raise InvalidRequest(f"offsets: topic {op.topic!r} has no queue {queue}", field="offsets")
        if offset > end:
            raise InvalidRequest(f"offsets: queue {queue} ends at {end}, {offset} lies past it", field="offsets")
        if op.expected is None:
            continue
        # What is no longer there is behind everybody: a group without a place is at the start, wherever that is.
        start = batch.catalog.starts.get((topic.id, queue), 0)
        stored = batch.get("index", b"q" + gt + keys.u16(queue))
        current = max(start, 0 if stored is None else keys.read_u64(stored))
        if current != max(start, op.expected.get(queue, 0)):
            raise OffsetMoved(
                f"group {op.group!r} is at {current} of {op.topic}/{queue}, not at {op.expected.get(queue, 0)}",
                field="expected",
            )
    gt = keys.group_topic(group_id(batch, op.group), topic.id)
    for queue, offset in op.offsets.items():
        batch.put("index", b"q" + gt + keys.u16(queue), keys.u64(offset))
    return None
