"""Bulk reads as Arrow: chunks become record batches column by column, streamed as they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import msgspec

from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import InvalidRequest, NotAllowed
from tallystick.core.message import Chunk

_decode = msgspec.msgpack.Decoder(Chunk).decode
ROWS_AT_ONCE = 8_192
BYTES_AT_ONCE = 4 * 1024 * 1024
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
T = TypeVar("T")


@cache
def pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError as error:
        raise NotAllowed("this broker has no Arrow: install tallystick[arrow] where it runs") from error
    return pa


@cache
def schema() -> Any:
    pa = pyarrow()
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


@cache
def schema_of(names: tuple[str, ...]) -> Any:
    """The schema with these columns only, in their usual order."""
    return pyarrow().schema([field for field in schema() if field.name in names])


def read_columns(text: str | None) -> tuple[str, ...]:
    """The columns that a request names; all of them if it names none."""
    known = tuple(schema().names)
    names = known if text is None else tuple(text.split(","))
    for name in names:
        if name not in known:
            raise InvalidRequest(f"columns: {name[:40]!r} is not one of {', '.join(known)}", field="columns")
    return names


def record_batch(
    chunks: list[Chunk], topic: str, queue: int, first: int, end: int, names: tuple[str, ...] | None = None
) -> Any:
    """The rows of consecutive chunks with offsets in [first, end), as one batch: few large arrays cost much less than
    many small ones."""
    pa = pyarrow()
    rows = sum(map(len, chunks))
    base = chunks[0].base
    makers: dict[str, Callable[[], Any]] = {
        "topic": lambda: pa.repeat(topic, rows),
        "queue": lambda: pa.repeat(pa.scalar(queue, pa.int32()), rows),
        "offset": lambda: pa.array(list(range(base, base + rows)), pa.int64()),
        "key": lambda: pa.array(_chained(chunk.keys for chunk in chunks), pa.string()),
        "value": lambda: pa.array(_chained(chunk.values for chunk in chunks), pa.binary()),
        "headers": lambda: headers_array(_chained(chunk.headers for chunk in chunks)),
        "tag": lambda: pa.array(_chained(chunk.tags for chunk in chunks), pa.string()),
        "gid": lambda: pa.array([gid or None for gid in _chained(chunk.gids for chunk in chunks)], pa.string()),
        "sequence": lambda: pa.array(_chained(chunk.sequences for chunk in chunks), pa.int32()),
        "timestamp": lambda: _times(_chained([chunk.stored_at] * len(chunk) for chunk in chunks)),
        "born_at": lambda: _times(_chained(chunk.born_at for chunk in chunks)),
    }
    wanted = schema() if names is None else schema_of(names)
    skip = max(0, first - base)
    batch = pa.record_batch([makers[name]() for name in wanted.names], schema=wanted)
    return batch.slice(skip, max(0, min(rows, end - base) - skip))


def _chained(columns: Iterable[list[T]]) -> list[T]:
    return list(chain.from_iterable(columns))


def _times(milliseconds: list[int]) -> Any:
    # As numbers first: Arrow's own way from Python numbers to times takes seven times as long.
    return pyarrow().array(milliseconds, pyarrow().int64()).cast(schema().field("timestamp").type)


def headers_array(headers: list[dict[str, str] | None]) -> Any:
    kind = schema().field("headers").type
    if not any(headers):
        return pyarrow().nulls(len(headers), kind)
    return pyarrow().array([None if one is None else list(one.items()) for one in headers], kind)


async def stream(
    door: BrokerDoor, topic: str, queue: int, offset: int, end: int, names: tuple[str, ...]
) -> AsyncIterator[bytes | memoryview]:
    """An Arrow IPC stream of the offsets in [offset, end): the schema, record batches, the end mark."""
    yield schema_of(names).serialize().to_pybytes()
    while offset < end:
        # Off the event loop: reading and building arrays of megabytes would hold every other request up.
        encoded, offset = await asyncio.to_thread(_next, door, topic, queue, offset, end, names)
        if encoded is None:
            break
        yield encoded
    yield END_OF_STREAM


def _next(
    door: BrokerDoor, topic: str, queue: int, offset: int, end: int, names: tuple[str, ...]
) -> tuple[memoryview | None, int]:
    """What lies at `offset` as one encoded batch, and where to go on; nothing if there is no more."""
    piece = door.read(topic, queue, offset, ROWS_AT_ONCE, BYTES_AT_ONCE)
    if not piece.chunks:
        return None, offset
    batch = record_batch([_decode(chunk) for chunk in piece.chunks], topic, queue, offset, end, names)
    return memoryview(batch.serialize()), piece.next
