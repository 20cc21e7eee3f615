"""Bodies: messages of a large part, laid down when the part is prepared; its commit only refers to them.

A commit of a million rows would otherwise write all of them once more, in one group commit that holds everybody else
up. A body is a chunk that does not know its offsets yet; the log holds a small reference in the chunk's place, and
whoever reads the log gets the whole chunk.

What came as columns is kept as columns (columnar/body.py), in an area of its own and under a number; what came as
messages lies in the log, under a key. Either is what `body` means below: eight bytes, or the key.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from tallystick.core.message import OutgoingMessage, StoredColumns
from tallystick.store.kv import keys
from tallystick.store.kv.engine import Area, Engine

BODY_MESSAGES = 1_000
BODY_BYTES = 256 * 1024


class Body(Struct, array_like=True, gc=False):
    """`sequences` count from the beginning of the part's request."""

    sequences: list[int]
    keys: list[str | None]
    values: list[bytes]
    headers: list[dict[str, str] | None]
    tags: list[str | None]
    born_at: list[int]


class Reference(Struct, array_like=True, gc=False):
    """Begins like a chunk, so that its head can be read like one."""

    base: int
    stored_at: int
    body: bytes
    gid: str
    first: int  # the sequence number that the body's sequence 0 has in its transaction


class ColumnsReference(Struct, array_like=True, gc=False):
    """The same for a body in columns, whose messages all have one time of birth."""

    base: int
    stored_at: int
    body: bytes
    gid: str
    first: int
    born_at: int


class _StoredBody(Struct, array_like=True, gc=False):
    """A body whose columns are copied, not looked into."""

    sequences: list[int]
    keys: Raw
    values: Raw
    headers: Raw
    tags: Raw
    born_at: Raw


class _Whole(Struct, array_like=True, gc=False):
    """A chunk (see core/message.py), put together from a reference and its body."""

    base: int
    stored_at: int
    gids: list[str]
    sequences: list[int]
    keys: Raw
    values: Raw
    headers: Raw
    tags: Raw
    born_at: Raw


# All are msgpack arrays; their first byte tells how many fields they have.
_REFERENCE = 0x90 + len(Reference.__struct_fields__)
_COLUMNS_REFERENCE = 0x90 + len(ColumnsReference.__struct_fields__)
_encode = msgspec.msgpack.Encoder().encode
_decode_reference = msgspec.msgpack.Decoder(Reference).decode
_decode_columns_reference = msgspec.msgpack.Decoder(ColumnsReference).decode
_decode_body = msgspec.msgpack.Decoder(_StoredBody).decode


def in_columns(body: bytes) -> bool:
    return len(body) == 8


def entries(topic_id: int, body: bytes) -> list[tuple[Area, bytes]]:
    """What is stored of a body: areas and keys."""
    if not in_columns(body):
        return [("log", body)]
    return [("body", key) for key in keys.COLUMNS.halves(topic_id, keys.read_u64(body))]


def whole(engine: Engine, topic_id: int, value: bytes, values: bool = True) -> bytes | StoredColumns | None:
    """What the log's value is or stands for: a chunk as it is stored, or columns (without the values, if nobody wants
    these); None if it has just been trimmed."""
    if value[0] == _REFERENCE:
        return _whole_chunk(engine, value)
    if value[0] == _COLUMNS_REFERENCE:
        return _stored_columns(engine, topic_id, value, values)
    return value


def _whole_chunk(engine: Engine, value: bytes) -> bytes | None:
    reference = _decode_reference(value)
    stored = engine.get("log", reference.body)
    if stored is None:
        return None
    body = _decode_body(stored)
    sequences = [reference.first + sequence for sequence in body.sequences]
    return _encode(
        _Whole(
            reference.base,
            reference.stored_at,
            [reference.gid] * len(sequences),
            sequences,
            body.keys,
            body.values,
            body.headers,
            body.tags,
            body.born_at,
        )
    )


def _stored_columns(engine: Engine, topic_id: int, value: bytes, values: bool) -> StoredColumns | None:
    reference = _decode_columns_reference(value)
    found = [engine.get(*entry) for entry in entries(topic_id, reference.body)[: 1 + values]]
    columns, value_column = found[0], found[1] if values else b""
    if columns is None or value_column is None:
        return None
    where = reference.base, reference.stored_at, reference.born_at, reference.gid, reference.first
    return StoredColumns(*where, columns, value_column)


def queue_of(key: str | None, turn: int, queues: int) -> int:
    """The same key always has the same queue; messages without a key take turns."""
    return (turn if key is None else zlib.crc32(key.encode())) % queues


def split(messages: list[tuple[int, OutgoingMessage]], queues: int, now: int, turn: int) -> Iterator[tuple[int, Body]]:
    """(queue, body) for the messages (each with its sequence) of one topic, in order within each queue."""
    filling: dict[int, tuple[Body, int]] = {}
    for sequence, message in messages:
        queue = queue_of(message.key, turn + sequence, queues)
        body, size = filling.get(queue) or (Body([], [], [], [], [], []), 0)
        body.sequences.append(sequence)
        body.keys.append(message.key)
        body.values.append(message.value)
        body.headers.append(message.headers)
        body.tags.append(message.tag)
        body.born_at.append(message.born_at or now)
        size += len(message.value) + 64
        if size >= BODY_BYTES or len(body.values) >= BODY_MESSAGES:
            filling.pop(queue, None)
            yield queue, body
        else:
            filling[queue] = body, size
    for queue, (body, _) in filling.items():
        yield queue, body
