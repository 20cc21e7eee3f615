"""Moving a consumer group to another place of a topic."""

from __future__ import annotations

from tallystick.core.errors import Conflict, InvalidRequest, NotFound
from tallystick.store.kv import keys, leases, offsets, topics
from tallystick.store.kv.batch import Batch
from tallystick.store.kv.catalog import Topic
from tallystick.store.kv.reader import Reader
from tallystick.store.protocol import ResetGroup


def reset(batch: Batch, op: ResetGroup, reader: Reader) -> None:
    topic = topics.known(batch.catalog, op.topic)
    places = _places(batch, op, topic, reader)
    for queue, offset in places.items():
        offsets.check_offset(batch, topic, queue, offset)
    gt = keys.group_topic(batch.catalog.groups.get(op.group, 0), topic.id)  # no group has the id 0
    if leases.has_begun(batch, gt):
        for queue, offset in places.items():
            leases.move(batch, gt, queue, offset)
        return
    mirrored = offsets.mirrored(batch, gt)
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
    for queue, offset in places.items():
        offsets.store(batch, gt, queue, offset)


def _places(batch: Batch, op: ResetGroup, topic: Topic, reader: Reader) -> dict[int, int]:
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
