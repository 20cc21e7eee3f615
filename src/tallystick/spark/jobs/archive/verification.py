"""A task's work: what a file holds, compared with what the broker holds, or with what its manifest says.

The broker's side does not come the way that the data came: not as Arrow but as the stored chunks, so that an error in
writing, in reading or in the broker's own Arrow is seen. Both come to a checksum over the content of messages, whatever
they are stored as. Each column has two hashes that grow with it: over its values one after the other, and over their
lengths, so that the same bytes cut into other values give another checksum. How rows are grouped into batches or
chunks does not matter.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tallystick.core.errors import DamagedArchive, OffsetOutOfRange
from tallystick.core.message import Chunk
from tallystick.core.wire import MSGPACK, FetchResponse
from tallystick.link import Link
from tallystick.spark.archive.layout import Archive
from tallystick.spark.archive.manifest import ArchivedFile

NUMBERS = ("offset", "sequence", "timestamp", "born_at")
TEXTS = ("key", "value", "tag", "gid", "header", "header_value")
NULL = -1  # the length of what is null
_STREAMS = (*NUMBERS, "headers", *(f"{name}:{kind}" for name in TEXTS for kind in ("length", "data")))
FETCH_BYTES = 8 * 1024 * 1024
FETCH_MESSAGES = 100_000

_decode = msgspec.msgpack.Decoder(FetchResponse).decode
_decode_chunk = msgspec.msgpack.Decoder(Chunk).decode


class Fingerprint:
    """The checksum of messages of one queue, in the order in which they are added."""

    def __init__(self) -> None:
        self.rows = 0
        self._hashes = {name: hashlib.sha256() for name in _STREAMS}

    def value(self) -> str:
        """For all that has been added so far."""
        together = hashlib.sha256(self.rows.to_bytes(8, "little"))
        for name in _STREAMS:
            together.update(self._hashes[name].digest())
        return f"sha256:{together.hexdigest()}"

    # --- from Arrow ------------------------------------------------------------------------------------------

    def add_batch(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name in NUMBERS:
            self._hashes[name].update(_number_bytes(batch.column(name)))
        for name in ("key", "value", "tag", "gid"):
            self._add_array(name, batch.column(name))
        headers = batch.column("headers")
        starts, ends = headers.offsets[:-1], headers.offsets[1:]
        # No headers and an empty set of headers are the same to everybody; the broker's Arrow does not tell them apart.
        counts = pc.if_else(headers.is_valid(), pc.subtract(ends, starts), 0)
        self._hashes["headers"].update(_number_bytes(counts))
        if headers.null_count < len(headers):
            present = headers.drop_null()
            self._add_array("header", _within(present, present.keys))
            self._add_array("header_value", _within(present, present.items))

    def _add_array(self, name: str, column: pa.Array) -> None:
        lengths = pc.fill_null(pc.binary_length(column), NULL)
        self._hashes[f"{name}:length"].update(_number_bytes(lengths))
        self._hashes[f"{name}:data"].update(_text_bytes(column.drop_null()))

    # --- from the broker's chunks ----------------------------------------------------------------------------

    def add_chunk(self, chunk: Chunk, start: int, end: int) -> None:
        """The messages of a chunk with offsets in [start, end)."""
        first = max(start - chunk.base, 0)
        last = max(first, min(end - chunk.base, len(chunk)))
        rows = slice(first, last)
        self.rows += last - first
        self._add_numbers("offset", range(chunk.base + first, chunk.base + last))
        self._add_numbers("sequence", chunk.sequences[rows])
        self._add_numbers("timestamp", [chunk.stored_at] * (last - first))
        self._add_numbers("born_at", chunk.born_at[rows])
        self._add_texts("key", chunk.keys[rows])
        self._add_values(chunk.values[rows])
        self._add_texts("tag", chunk.tags[rows])
        self._add_texts("gid", [gid or None for gid in chunk.gids[rows]])
        self._add_headers(chunk.headers[rows])

    def _add_headers(self, headers: list[dict[str, str] | None]) -> None:
        self._add_numbers("headers", [len(one) if one else 0 for one in headers])
        present = [one for one in headers if one]
        self._add_texts("header", list(chain.from_iterable(present)))
        self._add_texts("header_value", list(chain.from_iterable(one.values() for one in present)))

    def _add_numbers(self, name: str, numbers: Iterable[int]) -> None:
        self._hashes[name].update(array("q", numbers))

    def _add_values(self, values: list[bytes]) -> None:
        self._add_numbers("value:length", map(len, values))
        self._hashes["value:data"].update(b"".join(values))

    def _add_texts(self, name: str, texts: list[str | None]) -> None:
        joined = "".join(filter(None, texts))
        size = len if joined.isascii() else _encoded_size  # most are, and need not be encoded one by one
        self._add_numbers(f"{name}:length", [NULL if text is None else size(text) for text in texts])
        self._hashes[f"{name}:data"].update(joined.encode())


def _encoded_size(text: str) -> int:
    return len(text.encode())


def _number_bytes(column: pa.Array) -> Any:
    """Whole numbers (or times) without nulls as 64 bits each."""
    numbers = column.cast(pa.int64())
    return memoryview(numbers.buffers()[1])[8 * numbers.offset : 8 * (numbers.offset + len(numbers))]


def _text_bytes(column: pa.Array) -> Any:
    """The bytes of strings or binary values without nulls, one after the other."""
    if not len(column):
        return b""
    _, offsets, data = column.buffers()
    first, last = (struct.unpack_from("<i", offsets, 4 * (column.offset + at))[0] for at in (0, len(column)))
    return memoryview(data)[first:last] if data is not None else b""


def _within(headers: pa.MapArray, flat: pa.Array) -> pa.Array:
    """The part of a map array's flat keys or items that belongs to its rows."""
    first, last = headers.offsets[0].as_py(), headers.offsets[-1].as_py()
    return flat.slice(first, last - first)


# --- comparing --------------------------------------------------------------------------------------------------


def checked_against_log(archive: Archive, link: Link, topic: str, file: ArchivedFile) -> ArchivedFile:
    """The file with its checksum, once the file and the broker's log have come to the same one."""
    checksum = log_checksum(link, topic, file.queue, file.start, file.end)
    checked = msgspec.structs.replace(file, checksum=checksum)
    check_file(archive, checked)
    return checked


def check_file(archive: Archive, file: ArchivedFile) -> None:
    """Read a file back and compare it with what its checksum says; an error names the file and what to do."""
    found = Fingerprint()
    for batch in archive.read_file(file, file.start, file.end):
        found.add_batch(batch)
    if found.rows != file.rows or found.value() != file.checksum:
        raise DamagedArchive(
            f"{archive.data}/{file.path} does not hold what the broker held: {found.rows:,} of {file.rows:,} rows, "
            f"checksum {found.value()} instead of {file.checksum}; nothing was trimmed"
        )


def log_checksum(link: Link, topic: str, queue: int, start: int, end: int) -> str:
    """The checksum of the offsets [start, end) of a queue, from the broker's log."""
    found, at = Fingerprint(), start
    path = ("topics", topic, "queues", str(queue), "messages")
    while at < end:
        most = min(FETCH_MESSAGES, end - at)
        piece = _decode(link.get_bytes(MSGPACK, *path, offset=at, max=most, max_bytes=FETCH_BYTES))
        if piece.next <= at:
            raise OffsetOutOfRange(f"topic {topic!r}, queue {queue} ends at {at:,}, before {end:,}")
        for raw in piece.chunks:
            found.add_chunk(_decode_chunk(raw), at, end)
        at = piece.next
    return found.value()
