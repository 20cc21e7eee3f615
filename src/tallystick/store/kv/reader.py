"""Reading queues, never past what is durable."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import msgspec
from msgspec import Struct

from tallystick.core.errors import DamagedData
from tallystick.core.message import Chunk, Slice, StoredColumns, StoredMessage, Welcome, messages_of
from tallystick.store.kv import keys
from tallystick.store.kv.bodies import whole
from tallystick.store.kv.catalog import Topic
from tallystick.store.kv.columns import chunk_of
from tallystick.store.kv.engine import Engine
from tallystick.store.kv.visible import Shown, Visible


class ChunkHead(Struct, array_like=True):
    """The beginning of a chunk, read without decoding its messages."""

    base: int
    stored_at: int


decode_head = msgspec.msgpack.Decoder(ChunkHead).decode
_encode_chunk = msgspec.msgpack.Encoder().encode
_decode_chunk = msgspec.msgpack.Decoder(Chunk).decode


class QueueReader:
    """Chunks of a queue, up to its durable end: an engine may show a write to readers before its fsync, and what a
    power cut could still take back must not be seen by anyone."""

    CACHED_CHUNKS = 64
    CACHED_BYTES = 16 * 1024 * 1024
    # What a server sends with the chunk that was asked for, and is wanted next: small ones come many at a time.
    AHEAD_CHUNKS, AHEAD_BYTES = 16, 256 * 1024

    def __init__(self, engine: Engine, visible: Visible) -> None:
        self._engine, self._visible = engine, visible
        self._cache: OrderedDict[tuple[int, int, int], tuple[Chunk, int]] = OrderedDict()

    def slice(
        self, shown: Shown, queue: int, offset: int, max_messages: int, max_bytes: int, columns: Welcome = "none"
    ) -> Slice:
        """Whole chunks from the one that holds `offset` on, at least one if there is any. One that is damaged is told
        when it is the first: those before it are read all the same."""
        piece = Slice(shown.starts[queue], offset, shown.ends[queue], [], shown.topic.created_at, [])
        taken = 0
        for last, found in self._stored(shown.topic, queue, offset, piece.end, columns != "no values"):
            if isinstance(found, StoredColumns) and columns == "none":
                try:
                    found = _encode_chunk(chunk_of(found, shown.topic.name, queue))
                except DamagedData:
                    if taken:
                        break
                    raise
            size = len(found)
            if not _fits(piece, found) or (taken and taken + size > max_bytes):
                break
            if isinstance(found, StoredColumns):
                piece.columns.append(found)
            else:
                piece.chunks.append(found)
            piece.next = last + 1
            taken += size
            # The next chunk is not even looked at if one like this would be too much: looking costs reading it.
            if piece.next - offset >= max_messages or taken + size > max_bytes:
                break
        return piece

    def _stored(
        self, topic: Topic, queue: int, offset: int, end: int, values: bool = True
    ) -> Iterator[tuple[int, bytes | StoredColumns]]:
        """(last offset, what is stored) from the chunk that holds `offset` on."""
        for key, value in self._engine.scan("log", *keys.CHUNK.between(topic.id, queue, offset, end)):
            found = whole(self._engine, topic.id, value, values)
            if found is None:
                return  # trimmed while we read: the next read will be told so
            yield keys.CHUNK.last(key), found

    def messages(self, topic: Topic, queue: int, offset: int) -> Iterator[StoredMessage]:
        # Chunk by chunk: a receive wants a few messages, and mostly the ones behind the last it took.
        end = self._visible.end(topic, queue)
        while offset < end:
            chunk = self._chunk_at(topic, queue, offset, end)
            if chunk is None:
                return
            yield from messages_of(chunk, topic.name, queue, offset)
            offset = chunk.base + len(chunk)

    def message(self, topic: Topic, queue: int, offset: int) -> StoredMessage | None:
        found = next(self.messages(topic, queue, offset), None)
        return found if found is not None and found.offset == offset else None

    def stored_at(self, topic: Topic, queue: int, offset: int) -> int | None:
        if offset >= self._visible.end(topic, queue):
            return None
        found = self._head_at(topic.id, queue, offset)
        return None if found is None else found[1].stored_at

    def offset_at(self, topic: Topic, queue: int, start: int, timestamp: int) -> int:
        """The first offset from `start` on that was stored at `timestamp` or later; the end if there is none."""
        low, high = start, self._visible.end(topic, queue)
        while low < high:
            middle = (low + high) // 2
            found = self._head_at(topic.id, queue, middle)
            if found is None:
                return high
            last, head = found
            if head.stored_at < timestamp:
                low = last + 1
            else:
                high = max(low, min(head.base, middle))
        return low

    def _head_at(self, topic_id: int, queue: int, offset: int) -> tuple[int, ChunkHead] | None:
        """The last offset and the head of the chunk that holds `offset`; of a reference, without its body."""
        for key, value in self._engine.scan("log", *keys.CHUNK.since(topic_id, queue, offset)):
            return keys.CHUNK.last(key), decode_head(value)
        return None

    def _chunk_at(self, topic: Topic, queue: int, offset: int, end: int) -> Chunk | None:
        for (of_topic, of_queue, _), (chunk, _) in reversed(self._cache.items()):
            if (of_topic, of_queue) == (topic.id, queue) and chunk.base <= offset < chunk.base + len(chunk):
                return chunk
        first: Chunk | None = None
        size = 0
        most = self.AHEAD_CHUNKS if self._engine.remote else 1
        for last, found in islice(self._stored(topic, queue, offset, end), most):
            chunk = chunk_of(found, topic.name, queue) if isinstance(found, StoredColumns) else _decode_chunk(found)
            self._keep((topic.id, queue, last), chunk, len(found))
            first, size = first or chunk, size + len(found)
            if size >= self.AHEAD_BYTES:
                break
        return first

    def _keep(self, key: tuple[int, int, int], chunk: Chunk, size: int) -> None:
        self._cache[key] = chunk, size
        while len(self._cache) > self.CACHED_CHUNKS or self._cached_bytes() > self.CACHED_BYTES:
            self._cache.popitem(last=False)

    def _cached_bytes(self) -> int:
        return sum(size for _, size in self._cache.values())


def _fits(piece: Slice, found: bytes | StoredColumns) -> bool:
    """A slice holds one kind: what follows of the other is for the next."""
    return not (piece.chunks if isinstance(found, StoredColumns) else piece.columns)
