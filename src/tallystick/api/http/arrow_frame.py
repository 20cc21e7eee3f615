"""The frame of an Arrow IPC stream, looked through before Arrow reads any of it.

Each of its messages begins with metadata in flatbuffers, where many places may refer to one text: a request of a few
kilobytes could ask Arrow for a million copies of a long name. Nothing is believed here and nothing is copied; what
does not belong into a part (dictionaries, compression, a foreign byte order) goes no further.

The numbers of fields are those of Arrow's Message.fbs and Schema.fbs.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Packer
from struct import error as OutOfBounds
from struct import unpack_from

from tallystick.core.errors import InvalidRequest, TooLarge

MOST_METADATA = 64 * 1024  # bytes of one message; a schema with all our columns has one or two thousand
MOST_FIELDS = 32
MOST_REMARKS = 64
MOST_BATCHES = 10_000
_SCHEMA, _BATCH = 1, 3  # kinds of messages
_CONTINUES = 0xFFFFFFFF
_BUFFER = Packer("<qq")


def check_frame(body: bytes, most_rows: int) -> None:
    """Refuse a stream that Arrow should not even read."""
    frame = _Frame(most_rows)
    try:
        for metadata, size in _messages(body):
            frame.check(_Table(metadata, unpack_from("<I", metadata, 0)[0]), size)
    except OutOfBounds as error:
        raise InvalidRequest("the body is no Arrow IPC stream: its metadata is damaged or cut off") from error


def _messages(body: bytes) -> Iterator[tuple[bytes, int]]:
    """The metadata of each message and the number of bytes that follow it, up to the end of the stream."""
    place = 0
    while place + 4 <= len(body):
        length, place = unpack_from("<I", body, place)[0], place + 4
        if length == _CONTINUES:
            length, place = unpack_from("<I", body, place)[0], place + 4
        if length == 0:
            break
        if length > MOST_METADATA:
            raise InvalidRequest(f"the body is no Arrow IPC stream: it announces metadata of {length} bytes")
        metadata, place = body[place : place + length], place + length
        size = _Table(metadata, unpack_from("<I", metadata, 0)[0]).number(3, "<q")
        if not 0 <= size <= len(body) - place:
            raise InvalidRequest(f"the Arrow stream is cut off: {len(body) - place} bytes are left of {size}")
        yield metadata, size
        place += size
    if place != len(body):
        raise InvalidRequest(
            f"{len(body) - place} bytes follow the end of the Arrow stream; send one stream in a request"
        )


class _Frame:
    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._schemas = self._batches = self._rows = self._fields = self._remarks = 0

    def check(self, message: _Table, size: int) -> None:
        kind, content = message.number(1, "<B"), message.table(2)
        if kind not in (_SCHEMA, _BATCH) or content is None:
            raise InvalidRequest("the Arrow stream holds something else than a schema and plain record batches")
        self._batches += kind == _BATCH
        self._schemas += kind == _SCHEMA
        if self._batches > MOST_BATCHES:
            raise TooLarge(f"more than {MOST_BATCHES} record batches in one request; send larger ones")
        if self._schemas > 1:
            raise InvalidRequest("the Arrow stream has more than one schema")
        self._remarks = message.count(4)
        if kind == _SCHEMA:
            self._check_schema(content)
        else:
            self._check_batch(content, size)
        if self._remarks > MOST_REMARKS:
            raise InvalidRequest(
                f"the Arrow stream has {self._remarks} texts beside its columns; send at most {MOST_REMARKS}"
            )

    def _check_schema(self, schema: _Table) -> None:
        if schema.number(0, "<h"):
            raise InvalidRequest("the Arrow stream is big-endian; send it little-endian")
        self._remarks += schema.count(2)
        self._fields, parents = 0, [schema]
        while parents:
            parent = parents.pop()
            children = 1 if parent is schema else 5
            self._fields += parent.count(children)
            if self._fields > MOST_FIELDS:
                raise InvalidRequest("the Arrow stream has more columns than a message")
            for field in parent.tables(children):
                self._remarks += field.count(6)
                parents.append(field)

    def _check_batch(self, batch: _Table, size: int) -> None:
        rows = batch.number(0, "<q")
        if rows < 0 or batch.count(1) != self._fields:
            raise InvalidRequest(
                f"a record batch of {rows} rows and {batch.count(1)} columns is not that of the schema"
            )
        self._rows += rows
        if self._rows > self._most_rows:
            raise TooLarge(f"{self._rows} rows in one request, the limit is {self._most_rows}")
        if batch.is_set(3):
            raise InvalidRequest("the Arrow stream is compressed; send it plain")
        if batch.count(4):
            raise InvalidRequest("the Arrow stream has views; send plain strings and bytes")
        used = 0
        for offset, length in batch.buffers(2):
            used += length
            if offset < 0 or length < 0 or offset + length > size or used > size:
                raise InvalidRequest(f"the Arrow stream has buffers that are not in their message of {size} bytes")


class _Table:
    """A table of flatbuffers. Whatever lies outside of the metadata raises `struct.error`."""

    def __init__(self, metadata: bytes, at: int) -> None:
        self._metadata, self._at = metadata, at
        self._vtable = at - self._read("<i", at)
        self._vtable_size = self._read("<H", self._vtable)

    def is_set(self, field: int) -> bool:
        return self._place(field) > 0

    def number(self, field: int, form: str) -> int:
        place = self._place(field)
        return self._read(form, place) if place else 0

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return _Table(self._metadata, place + self._read("<I", place)) if place else None

    def count(self, field: int) -> int:
        """Of a vector."""
        place = self._place(field)
        return self._read("<I", place + self._read("<I", place)) if place else 0

    def tables(self, field: int) -> Iterator[_Table]:
        for place in self._elements(field, 4):
            yield _Table(self._metadata, place + self._read("<I", place))

    def buffers(self, field: int) -> Iterator[tuple[int, int]]:
        for place in self._elements(field, _BUFFER.size):
            yield _BUFFER.unpack_from(self._metadata, place)

    def _elements(self, field: int, size: int) -> range:
        if not self.is_set(field):
            return range(0)
        begin = self._place(field)
        begin += self._read("<I", begin) + 4
        return range(begin, begin + self.count(field) * size, size)

    def _place(self, field: int) -> int:
        """Where a field lies; 0 if it is not set."""
        entry = 4 + 2 * field
        offset = self._read("<H", self._vtable + entry) if entry < self._vtable_size else 0
        return self._at + offset if offset else 0

    def _read(self, form: str, at: int) -> int:
        if at < 0:
            raise OutOfBounds("before the beginning")
        number: int = unpack_from(form, self._metadata, at)[0]
        return number
