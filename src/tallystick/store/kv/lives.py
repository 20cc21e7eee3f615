"""The lives of a topic: one that is deleted and made again goes on where it ended.

Offsets of a name are never used twice in one store. Ids of messages and the offsets that readers keep are made of
names, so they would otherwise mean other messages after a topic was made again: new ones would be dropped as
duplicates, or skipped, without a word. What is kept of a deleted topic is one small record under its name, not in
memory, until a topic of that name is made again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from tallystick.store.kv import keys
from tallystick.store.kv.batch import Batch, encode
from tallystick.store.kv.catalog import Topic
from tallystick.store.kv.places import Cursor, store_cursor, store_offset


class Ended(Struct, array_like=True):
    """A topic that was deleted: where its queues ended, also those that only an earlier life had, and the groups that
    had a place in it, by lease or by a stored offset."""

    created_at: int
    ends: list[int]
    receivers: list[int]
    readers: list[int]


NEVER = Ended(-1, [], [], [])
_decode = msgspec.msgpack.Decoder(Ended).decode


def end(batch: Batch, topic: Topic) -> None:
    """Keep what the next topic of this name goes on from. One that nobody wrote to or read from leaves nothing."""
    ends = [batch.catalog.ends.get((topic.id, queue), 0) for queue in range(topic.most_queues)]
    ended = Ended(
        topic.created_at,
        ends,
        list(_with_place(batch, topic, keys.CURSOR)),
        list(_with_place(batch, topic, keys.STORED)),
    )
    if any(ended.ends) or ended.receivers or ended.readers:
        batch.put("index", keys.ENDED.key(topic.name), encode(ended))


def _with_place(batch: Batch, topic: Topic, kind: keys.OfGroup) -> Iterator[int]:
    for group_id in batch.catalog.groups.values():
        place = kind.of(keys.group_topic(group_id, topic.id))
        if next(batch.scan("index", *place), None) is not None:
            yield group_id


def last(batch: Batch, name: str) -> Ended:
    """The life before the one that begins now, which takes over what was kept of it."""
    stored = batch.get("index", keys.ENDED.key(name))
    if stored is None:
        return NEVER
    batch.delete("index", keys.ENDED.key(name))
    return _decode(stored)


def hand_over(batch: Batch, ended: Ended, topic: Topic) -> None:
    """Groups that had a place in the last life have one at the beginning of this: a group that was to begin with the
    latest message must not begin once more, behind what came in the meantime. One queue stands for all."""
    begin = topic.begin(0)
    for group_id in ended.receivers:
        store_cursor(batch, keys.group_topic(group_id, topic.id), 0, Cursor(begin))
    for group_id in ended.readers:
        store_offset(batch, keys.group_topic(group_id, topic.id), 0, begin)
