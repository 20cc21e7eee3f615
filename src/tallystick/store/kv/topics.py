"""Topics: made by request or by their first use, trimmed by age, deleted whole (and what then: lives.py)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from tallystick.core.errors import InvalidRequest, NotFound, OffsetOutOfRange, TooLarge
from tallystick.core.wire import TopicView
from tallystick.store.kv import bodies, keys, lives
from tallystick.store.kv.batch import Batch, encode
from tallystick.store.kv.catalog import Catalog, Topic, unknown_topic
from tallystick.store.kv.reader import decode_head
from tallystick.store.kv.visible import show
from tallystick.store.protocol import DeleteTopic, MadeTopic, Progress, PutTopic, TrimTo, TrimTopics

_MESSAGE = "a message"
_LOOKS_AT_ONCE = 64  # at the heads of queues, by one sweep: each may be a round trip


def known(catalog: Catalog, name: str) -> Topic:
    topic = catalog.topics.get(name)
    if topic is None:
        raise unknown_topic(name)
    return topic


def outside(topic: Topic, queue: int, offset: int, start: int, end: int) -> OffsetOutOfRange:
    """The refusal of an offset that is not there; says so if it was one of a topic that was deleted."""
    told = f"offset {offset} is outside of {topic.name}/{queue}, which holds {start} to {end}"
    begin = topic.begin(queue)
    if offset < begin:
        told += f": the topic was deleted and made again, offsets before {begin} were those of the deleted one"
    return OffsetOutOfRange(told, field="offset")


def require(batch: Batch, names: Iterable[str], by: str = _MESSAGE) -> None:
    """Make sure of the topics that messages go to: made now if the broker may do that. All of them, or none is made.
    `by` is what needs them, as the broker's log says it."""
    known = batch.catalog.topics
    missing = [name for name in names if name not in known]
    if missing:
        _make(batch, dict.fromkeys(missing), by)


def _make(batch: Batch, missing: dict[str, None], by: str) -> None:
    if not batch.settings.auto_create_topics:
        name = next(iter(missing))
        raise NotFound(f"there is no topic {name!r}, and this broker does not create topics by itself", field="topic")
    _check_room(batch, *missing)
    for name in missing:
        ensure(batch, name, by)


def ensure(batch: Batch, name: str, by: str = _MESSAGE) -> Topic:
    """The topic of messages that can no longer be refused: made (again) whatever the settings and limits say."""
    topic = batch.catalog.topics.get(name)
    if topic is None:
        topic = _create(batch, PutTopic(name))
        batch.made.append(MadeTopic(name, topic.queues, by))
    return topic


def _check_room(batch: Batch, *new: str) -> None:
    most = batch.settings.limits.topics
    if len(batch.catalog.topics) + len(new) > most:
        raise TooLarge(f"topic {new[0]!r} would exceed the limit of {most} topics", field="topic")


def _create(batch: Batch, op: PutTopic) -> Topic:
    batch.counters.topics += 1
    queues = op.queues or batch.settings.default_queues
    retention = batch.settings.retention_ms if op.retention_ms is None else op.retention_ms
    ended = lives.last(batch, op.name)
    created_at = max(batch.now, ended.created_at + 1)  # tells lives apart, whatever the clock does
    topic = Topic(batch.counters.topics, op.name, queues, retention, created_at, ended.ends)
    batch.catalog.add_topic(topic)
    _store(batch, topic)
    lives.hand_over(batch, ended, topic)
    return topic


def _store(batch: Batch, topic: Topic) -> None:
    batch.touched.add(topic.id)
    batch.put("index", keys.TOPIC.key(topic.name), encode(topic))


def put(batch: Batch, op: PutTopic) -> TopicView:
    most = batch.settings.limits.queues_per_topic
    if op.queues is not None and not 1 <= op.queues <= most:
        raise InvalidRequest(f"queues: {op.queues} is not between 1 and {most}", field="queues")
    topic = batch.catalog.topics.get(op.name)
    if topic is None:
        _check_room(batch, op.name)
        return show(batch.catalog, _create(batch, op)).view()
    if op.queues is not None and op.queues < topic.queues:
        raise InvalidRequest(
            f"queues: topic {op.name!r} has {topic.queues} queues; the number can only grow", field="queues"
        )
    retention = topic.retention_ms if op.retention_ms is None else op.retention_ms
    topic = msgspec.structs.replace(topic, queues=op.queues or topic.queues, retention_ms=retention)
    batch.catalog.replace_topic(topic)
    _store(batch, topic)
    return show(batch.catalog, topic).view()


def delete(batch: Batch, op: DeleteTopic) -> None:
    topic = known(batch.catalog, op.name)
    lives.end(batch, topic)
    batch.delete("index", keys.TOPIC.key(topic.name))
    batch.delete_range("log", *keys.CHUNK.of_topic(topic.id))
    batch.delete_range("body", *keys.COLUMNS.of_topic(topic.id))
    for whole in (keys.END.of_topic(topic.id), keys.START.of_topic(topic.id), keys.REFERENCE.of_topic(topic.id)):
        batch.delete_range("index", *whole)
    for group_id in batch.catalog.groups.values():
        gt = keys.group_topic(group_id, topic.id)
        for _ in batch.scan("index", *keys.LEASE.of(gt)):
            batch.counters.leased -= 1
        for place in (keys.CURSOR.of(gt), keys.LEASE.of(gt), keys.VISIBLE.of(gt), keys.STORED.of(gt)):
            batch.delete_range("index", *place)
    batch.log.forget(topic.id)
    batch.catalog.remove_topic(topic)
    batch.deleted.append(topic)


def trim(batch: Batch, op: TrimTopics) -> Progress:
    """Drop the chunks at the head of each queue that have outlived the topic's retention."""
    left, looks = op.limit, _LOOKS_AT_ONCE
    for topic in list(batch.catalog.topics.values()):
        for queue in range(topic.queues):
            if _is_young(batch, topic, queue):
                continue
            left -= _trim_queue(batch, topic, queue, left)
            looks -= 1
            if left <= 0 or looks <= 0:
                return Progress(op.limit - left, more=True)
    return Progress(op.limit - left)


def _is_young(batch: Batch, topic: Topic, queue: int) -> bool:
    """Whether the queue is empty, or begins with what was stored recently, as far as that is known."""
    where = (topic.id, queue)
    if batch.catalog.starts.get(where, 0) >= batch.catalog.ends.get(where, 0):
        return True
    head = batch.catalog.heads.get(where)
    return head is not None and head >= batch.now - topic.retention_ms


def trim_to(batch: Batch, op: TrimTo) -> Progress:
    """Drop what lies before given offsets; at most `limit` bodies at a time, which have to go one by one."""
    topic = known(batch.catalog, op.topic)
    for queue, offset in op.offsets.items():
        end = batch.catalog.ends.get((topic.id, queue), 0)
        if not 0 <= queue < topic.queues or offset > end:
            raise InvalidRequest(
                f"offsets: {op.topic}/{queue} has no offset {offset}, it ends at {end}", field="offsets"
            )
    left = op.limit
    for queue, offset in op.offsets.items():
        left -= _drop_before(batch, topic, queue, offset, left)
        if left <= 0:
            return Progress(op.limit, more=True)
    return Progress(op.limit - left)


def _drop_before(batch: Batch, topic: Topic, queue: int, offset: int, limit: int) -> int:
    """Move the start of a queue to `offset`, or less far if that would take more than `limit` bodies."""
    where = (topic.id, queue)
    if offset <= batch.catalog.starts.get(where, 0):
        return 0
    dropped = 0
    for entry, body in list(islice(batch.scan("index", *keys.REFERENCE.before(*where, offset)), limit)):
        for stored in bodies.entries(topic.id, body):
            batch.delete(*stored)
        dropped += 1
        if dropped == limit:
            offset = keys.REFERENCE.last(entry) + 1
    batch.delete_range("log", *keys.CHUNK.between(*where, 0, offset))
    batch.delete_range("index", *keys.REFERENCE.before(*where, offset))
    batch.catalog.starts[where] = batch.trimmed[where] = offset
    batch.catalog.heads.pop(where, None)
    batch.touched.add(topic.id)
    batch.put("index", keys.START.key(*where), keys.u64(offset))
    return dropped


def _trim_queue(batch: Batch, topic: Topic, queue: int, limit: int) -> int:
    where = (topic.id, queue)
    oldest = batch.now - topic.retention_ms
    start = batch.catalog.starts.get(where, 0)
    trimmed, new_start = 0, start
    head = batch.now  # unless there is an older one: of what this very unit appends nothing is found yet
    for key, value in batch.engine.scan("log", *keys.CHUNK.since(topic.id, queue, start)):
        stored_at = decode_head(value).stored_at
        if trimmed >= limit or stored_at >= oldest:
            head = stored_at
            break
        trimmed += 1
        new_start = keys.CHUNK.last(key) + 1
    if trimmed:
        _drop_before(batch, topic, queue, new_start, trimmed)
    batch.catalog.heads[where] = head
    return trimmed
