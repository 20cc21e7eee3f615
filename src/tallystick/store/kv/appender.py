"""Appending to queues: what one batch adds to a queue becomes one chunk (or a few, if it is much)."""

from __future__ import annotations

import msgspec

from tallystick.core.message import Chunk, KeptMessage
from tallystick.core.ops import Position
from tallystick.store.kv import keys
from tallystick.store.kv.bodies import Reference, queue_of
from tallystick.store.kv.catalog import Catalog, QueueId, Topic
from tallystick.store.kv.engine import Changes

CHUNK_MESSAGES = 500
CHUNK_BYTES = 256 * 1024

_encode = msgspec.msgpack.Encoder().encode


class _Open:
    """A chunk that is being filled."""

    __slots__ = ("bytes", "chunk")

    def __init__(self, base: int, now: int) -> None:
        self.chunk = Chunk(base, now, [], [], [], [], [], [], [])
        self.bytes = 0


class Appender:
    def __init__(self, catalog: Catalog, now: int) -> None:
        self._catalog = catalog
        self._now = now
        self._open: dict[QueueId, _Open] = {}
        self._sealed: list[tuple[QueueId, Chunk]] = []
        self._references: list[tuple[QueueId, int, Reference]] = []
        self.touched: set[QueueId] = set()

    def _turn(self, topic: Topic) -> int:
        """The queue of a message without a key."""
        turn = self._catalog.round_robin.get(topic.id, 0)
        self._catalog.round_robin[topic.id] = turn + 1
        return queue_of(None, turn, topic.queues)

    def add(self, topic: Topic, message: KeptMessage, gid: str, sequence: int) -> Position:
        key = message.key
        queue = self._turn(topic) if key is None else queue_of(key, 0, topic.queues)
        where = (topic.id, queue)
        opened = self._open.get(where)
        if opened is None:
            base = self._catalog.ends.get(where, 0)
            opened = self._open[where] = _Open(base, self._now)
        chunk = opened.chunk
        chunk.gids.append(gid)
        chunk.sequences.append(sequence)
        chunk.keys.append(key)
        chunk.values.append(message.value)
        chunk.headers.append(message.headers)
        chunk.tags.append(message.tag)
        chunk.born_at.append(message.born_at or self._now)
        opened.bytes += len(message.value) + 64
        offset = chunk.base + len(chunk.values) - 1
        self._catalog.ends[where] = offset + 1
        if opened.bytes >= CHUNK_BYTES or len(chunk.values) >= CHUNK_MESSAGES:
            self._sealed.append((where, self._open.pop(where).chunk))
        return Position(topic.name, queue, offset)

    def refer(self, where: QueueId, count: int, body: bytes, gid: str, first: int) -> None:
        """Append messages that lie in a body already."""
        opened = self._open.pop(where, None)
        if opened is not None:
            self._sealed.append((where, opened.chunk))
        base = self._catalog.ends.get(where, 0)
        self._catalog.ends[where] = base + count
        self._references.append((where, base + count - 1, Reference(base, self._now, body, gid, first)))

    def forget(self, topic_id: int) -> None:
        """The topic is deleted: what this batch has appended to it goes with it."""
        self._open = {where: opened for where, opened in self._open.items() if where[0] != topic_id}
        self._sealed = [(where, chunk) for where, chunk in self._sealed if where[0] != topic_id]
        self._references = [one for one in self._references if one[0][0] != topic_id]

    def seal(self, changes: Changes) -> None:
        log, index = changes.keys["log"], changes.keys["index"]
        for where, opened in self._open.items():
            self._sealed.append((where, opened.chunk))
        for where, chunk in self._sealed:
            last = chunk.base + len(chunk.values) - 1
            log[keys.CHUNK.key(*where, last)] = _encode(chunk)
            self.touched.add(where)
        for where, last, reference in self._references:
            log[keys.CHUNK.key(*where, last)] = _encode(reference)
            index[keys.REFERENCE.key(*where, last)] = reference.body
            self.touched.add(where)
        for where in self.touched:
            index[keys.END.key(*where)] = keys.u64(self._catalog.ends[where])
