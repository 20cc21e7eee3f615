"""Delayed messages: kept aside in order of time, moved into their queue when they are due."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tallystick.core.message import KeptMessage
from tallystick.core.ops import Position
from tallystick.store.kv import keys, topics
from tallystick.store.kv.batch import NEVER, Batch, encode
from tallystick.store.kv.catalog import Topic
from tallystick.store.protocol import Progress, PromoteDelayed


class Delayed(Struct, array_like=True):
    topic_id: int
    gid: str
    sequence: int
    message: KeptMessage


decode_delayed = msgspec.msgpack.Decoder(Delayed).decode


def append(batch: Batch, message: KeptMessage, gid: str, sequence: int) -> Position:
    """A message that has become visible: into its queue, or aside until its time."""
    topic = topics.ensure(batch, message.topic)
    if message.deliver_at > batch.now:
        return _put_aside(batch, topic, message, gid, sequence)
    return batch.log.add(topic, message, gid, sequence)


def _put_aside(batch: Batch, topic: Topic, message: KeptMessage, gid: str, sequence: int) -> Position:
    batch.counters.delayed += 1
    key = keys.DELAYED.key(message.deliver_at, batch.counters.delayed)
    batch.put("index", key, encode(Delayed(topic.id, gid, sequence, message)))
    batch.catalog.first_delayed = min(batch.catalog.first_delayed, message.deliver_at)
    return Position(topic.name, -1, -1)


def promote(batch: Batch, op: PromoteDelayed) -> Progress:
    known = batch.catalog.first_delayed
    if batch.now < known:
        return Progress(0, next_at=None if known == NEVER else known)
    done, first = 0, NEVER
    for key, value in batch.scan("index", *keys.DELAYED.since(known)):
        at = keys.DELAYED.at(key)
        if at > batch.now or done >= op.limit:
            first = at
            break
        waiting = decode_delayed(value)
        topic = batch.catalog.topics_by_id.get(waiting.topic_id)
        if topic is not None:  # a topic deleted meanwhile takes its delayed messages with it
            batch.log.add(topic, waiting.message, waiting.gid, waiting.sequence)
        batch.delete("index", key)
        done += 1
    batch.catalog.first_delayed = first
    if first == NEVER:
        return Progress(done)
    return Progress(done, more=True) if first <= batch.now else Progress(done, next_at=first)
