"""Delayed messages: kept aside in order of time, moved into their queue when they are due."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tallystick.core.message import KeptMessage
from tallystick.core.ops import Position
from tallystick.store.kv import keys, topics
from tallystick.store.kv.batch import Batch, encode
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
    return Position(topic.name, -1, -1)


def promote(batch: Batch, op: PromoteDelayed) -> Progress:
    done = 0
    for key, value in batch.scan("index", *keys.DELAYED.all):
        at = keys.DELAYED.at(key)
        if at > batch.now:
            return Progress(done, next_at=at)
        if done >= op.limit:
            return Progress(done, more=True)
        waiting = decode_delayed(value)
        topic = batch.catalog.topics_by_id.get(waiting.topic_id)
        if topic is not None:  # a topic deleted meanwhile takes its delayed messages with it
            batch.log.add(topic, waiting.message, waiting.gid, waiting.sequence)
        batch.delete("index", key)
        done += 1
    return Progress(done)
