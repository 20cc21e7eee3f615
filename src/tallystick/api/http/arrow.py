"""Bulk reads as Arrow: chunks become record batches column by column, streamed as they are read."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import msgspec

from tallystick.broker.broker import Broker
from tallystick.core.errors import NotAllowed
from tallystick.core.message import Chunk

_decode = msgspec.msgpack.Decoder(Chunk).decode
ROWS_AT_ONCE = 8_192
BYTES_AT_ONCE = 8 * 1024 * 1024


@cache
def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise NotAllowed("this broker has no Arrow: install tallystick[arrow] where it runs") from error
    return pyarrow


@cache
def schema() -> Any:
    pa = _arrow()
    return pa.schema(
        [
            pa.field("topic", pa.string(), nullable=False),
            pa.field("queue", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("key", pa.string()),
            pa.field("value", pa.binary(), nullable=False),
            pa.field("headers", pa.map_(pa.string(), pa.string())),
            pa.field("tag", pa.string()),
            pa.field("gid", pa.string()),
            pa.field("sequence", pa.int32(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("born_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        ]
    )


def record_batch(chunk: Chunk, topic: str, queue: int, first: int, end: int) -> Any:
    """The rows of a chunk with offsets in [first, end)."""
    pa = _arrow()
    rows = len(chunk)
    known = schema()
    headers = None if not any(chunk.headers) else [None if one is None else list(one.items()) for one in chunk.headers]
    time = pa.timestamp("ms", tz="UTC")
    columns = [
        pa.repeat(topic, rows),
        pa.repeat(pa.scalar(queue, pa.int32()), rows),
        pa.array(range(chunk.base, chunk.base + rows), pa.int64()),
        pa.array(chunk.keys, pa.string()),
        pa.array(chunk.values, pa.binary()),
        pa.nulls(rows, known.field("headers").type)
        if headers is None
        else pa.array(headers, known.field("headers").type),
        pa.array(chunk.tags, pa.string()),
        pa.array([gid or None for gid in chunk.gids], pa.string()),
        pa.array(chunk.sequences, pa.int32()),
        pa.repeat(pa.scalar(chunk.stored_at, time), rows),
        pa.array(chunk.born_at, time),
    ]
    skip = max(0, first - chunk.base)
    return pa.record_batch(columns, schema=known).slice(skip, max(0, min(rows, end - chunk.base) - skip))


class _Sink(io.RawIOBase):
    """Where the Arrow writer writes; emptied after every piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def take(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken


async def stream(broker: Broker, topic: str, queue: int, offset: int, end: int) -> AsyncIterator[bytes]:
    """An Arrow IPC stream of the offsets in [offset, end)."""
    sink = _Sink()
    writer = _arrow().ipc.new_stream(sink, schema())
    while offset < end:
        piece = broker.store.read(topic, queue, offset, ROWS_AT_ONCE, BYTES_AT_ONCE)
        if not piece.chunks:
            break
        # Off the event loop: building arrays of megabytes would hold every other request up.
        await asyncio.to_thread(_write, writer, piece.chunks, topic, queue, offset, end)
        offset = piece.next
        yield sink.take()
    writer.close()
    yield sink.take()


def _write(writer: Any, chunks: list[bytes], topic: str, queue: int, offset: int, end: int) -> None:
    for raw in chunks:
        writer.write_batch(record_batch(_decode(raw), topic, queue, offset, end))
