"""Appending to queues: what one batch adds to a queue becomes one chunk (or a few, if it is much)."""

from __future__ import annotations

import msgspec

from tallystick.core.message import Chunk, KeptMessage
from tallystick.core.ops import Position
from tallystick.store.kv import keys
from tallystick.store.kv.bodies import ColumnsReference, Reference, queue_of
from tallystick.store.kv.catalog import Catalog, QueueId, Topic
from tallystick.store.kv.engine import Changes

CHUNK_MESSAGES = 500
CHUNK_BYTES = 256 * 1024

_encode = msgspec.msgpack.Encoder().encode


_Row = tuple[str, int, str | None, bytes, dict[str, str] | None, str | None, int]


class _Open:
    """A chunk that is being filled, row by row; it is turned into columns when it is full."""

    __slots__ = ("base", "bytes", "rows")

    def __init__(self, base: int) -> None:
        self.base = base
        self.bytes = 0
        self.rows: list[_Row] = []

    def chunk(self, now: int) -> Chunk:
        return Chunk(self.base, now, *map(list, zip(*self.rows, strict=True)))


class Appender:
    def __init__(self, catalog: Catalog, now: int) -> None:
        self._catalog = catalog
        self._now = now
        self._open: dict[QueueId, _Open] = {}
        self._sealed: list[tuple[QueueId, Chunk]] = []
        self._references: list[tuple[QueueId, int, Reference | ColumnsReference]] = []
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
            opened = self._open[where] = _Open(base)
        value, rows = message.value, opened.rows
        offset = opened.base + len(rows)
        rows.append((gid, sequence, key, value, message.headers, message.tag, message.born_at or self._now))
        opened.bytes += len(value) + 64
        self._catalog.ends[where] = offset + 1
        if opened.bytes >= CHUNK_BYTES or len(rows) >= CHUNK_MESSAGES:
            self._sealed.append((where, self._open.pop(where).chunk(self._now)))
        return Position(topic.name, queue, offset)

    def refer(self, where: QueueId, count: int, reference: Reference | ColumnsReference) -> None:
        """Append messages that lie in a body already; the place of the reference is told here."""
        opened = self._open.pop(where, None)
        if opened is not None:
            self._sealed.append((where, opened.chunk(self._now)))
        base = self._catalog.ends.get(where, 0)
        self._catalog.ends[where] = base + count
        reference.base, reference.stored_at = base, self._now
        self._references.append((where, base + count - 1, reference))

    def forget(self, topic_id: int) -> None:
        """The topic is deleted: what this batch has appended to it goes with it."""
        self._open = {where: opened for where, opened in self._open.items() if where[0] != topic_id}
        self._sealed = [(where, chunk) for where, chunk in self._sealed if where[0] != topic_id]
        self._references = [one for one in self._references if one[0][0] != topic_id]

    def seal(self, changes: Changes) -> None:
        log, index = changes.keys["log"], changes.keys["index"]
        for where, opened in self._open.items():
            self._sealed.append((where, opened.chunk(self._now)))
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
