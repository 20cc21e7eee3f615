"""Valid Arrow streams, changed in one place: the flatbuffers of a message, or the bytes that follow them."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

TEXT, BYTES = pa.string(), pa.binary()
MAP = pa.map_(TEXT, TEXT)
TOPIC = "lies"
# Numbers of fields in Arrow's Message.fbs and Schema.fbs.
VERSION, KIND, HEADER, BODY_LENGTH, REMARKS = range(5)
ROWS, NODES, BUFFERS, COMPRESSION = range(4)
ENDIANNESS, FIELDS, SCHEMA_REMARKS = range(3)
# The buffers of the columns that `table` has, in their order.
NAMES = [f"{column} {what}" for column in ("topic", "value", "key") for what in ("valid", "offsets", "data")]
NAMES += ["headers valid", "headers offsets", "entries valid"]
NAMES += [f"{column} {what}" for column in ("name", "text", "tag") for what in ("valid", "offsets", "data")]
NAMES += ["deliver_at valid", "deliver_at data"]
NODE_NAMES = ["topic", "value", "key", "headers", "entries", "name", "text", "tag", "deliver_at"]


def table(**columns: Any) -> pa.Table:
    plain: dict[str, Any] = {
        "topic": pa.array([TOPIC] * 3),
        "value": pa.array([b"one", b"two", b"three"]),
        "key": pa.array(["abc", None, "def"]),
        "headers": pa.array([[("a", "x"), ("b", "y")], None, [("c", "z")]], MAP),
        "tag": pa.array(["red", "blue", None]),
        "deliver_at": pa.array([None, 0, None], pa.timestamp("ms", "UTC")),
    }
    return pa.table({**plain, **columns})


def stream(content: pa.Table, **options: Any) -> bytes:
    made = io.BytesIO()
    with pa.ipc.new_stream(made, content.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(content)
    return made.getvalue()


class Flat:
    """A table of flatbuffers inside of a stream."""

    def __init__(self, content: bytearray, at: int) -> None:
        self._content, self._at = content, at
        self._vtable = at - self._read("<i", at)

    def _read(self, form: str, at: int) -> int:
        return int(struct.unpack_from(form, self._content, at)[0])

    def place(self, field: int) -> int:
        offset = self._read("<H", self._vtable + 4 + 2 * field)
        assert offset, f"field {field} is not set"
        return self._at + offset

    def table(self, field: int) -> Flat:
        return Flat(self._content, self.place(field) + self._read("<I", self.place(field)))

    def element(self, field: int, number: int) -> int:
        """Where an element of a vector of pairs of numbers lies."""
        begin = self.place(field) + self._read("<I", self.place(field)) + 4
        return begin + 16 * number

    def share(self, field: int, other: int) -> None:
        """A field that is not set gets the bytes of another one."""
        entry = struct.unpack_from("<H", self._content, self._vtable + 4 + 2 * other)
        struct.pack_into("<H", self._content, self._vtable + 4 + 2 * field, *entry)


class Lie:
    """A stream of a schema and one record batch that can be changed anywhere."""

    def __init__(self, content: bytes | None = None) -> None:
        self.bytes = bytearray(content or stream(table()))
        self.second = 8 + self.number("<I", 4)

    def number(self, form: str, at: int) -> int:
        return int(struct.unpack_from(form, self.bytes, at)[0])

    def put(self, form: str, at: int, number: int) -> bytes:
        struct.pack_into(form, self.bytes, at, number)
        return bytes(self.bytes)

    @property
    def schema_message(self) -> Flat:
        return Flat(self.bytes, 8 + self.number("<I", 8))

    @property
    def message(self) -> Flat:
        begin = self.second + 8
        return Flat(self.bytes, begin + self.number("<I", begin))

    @property
    def batch(self) -> Flat:
        return self.message.table(HEADER)

    @property
    def body(self) -> int:
        return self.second + 8 + self.number("<I", self.second + 4)

    @property
    def body_end(self) -> int:
        return self.body + self.number("<q", self.message.place(BODY_LENGTH))

    def buffer(self, name: str) -> int:
        """Where it is said where a buffer lies, and 8 bytes on, how long it is."""
        return self.batch.element(BUFFERS, NAMES.index(name))

    def data(self, name: str) -> int:
        """Where a buffer lies."""
        return self.body + self.number("<q", self.buffer(name))

    def node(self, name: str) -> int:
        """Where the length of a column is said, and 8 bytes on, the number of its nulls."""
        return self.batch.element(NODES, NODE_NAMES.index(name))

    def appended(self, name: str, content: bytes) -> bytes:
        """A buffer moved to the end of the body, with other content."""
        content += bytes(-len(content) % 8)
        end = self.body_end
        self.put("<q", self.buffer(name), end - self.body)
        self.put("<q", self.buffer(name) + 8, len(content))
        self.put("<q", self.message.place(BODY_LENGTH), end - self.body + len(content))
        self.bytes[end:end] = content
        return bytes(self.bytes)


def said(where: Callable[[Lie], int], number: int, form: str = "<q") -> bytes:
    """A valid stream with one number changed."""
    lie = Lie()
    return lie.put(form, where(lie), number)


def garbled(name: str, content: bytes) -> bytes:
    """A valid stream with the first bytes of a buffer changed."""
    lie = Lie()
    lie.bytes[lie.data(name) : lie.data(name) + len(content)] = content
    return bytes(lie.bytes)


def many_copies(count: int, length: int, of_message: bool) -> bytes:
    """A stream whose metadata refers to one long text very often: beside its columns, or beside its first message."""
    made = io.BytesIO()
    content = table().replace_schema_metadata(None if of_message else {"k": "v"})
    with pa.ipc.new_stream(made, content.schema) as writer:
        writer.write_batch(content.to_batches()[0], custom_metadata=pa.KeyValueMetadata({"k": "v"}))
    lie = Lie(made.getvalue())
    begin = lie.second if of_message else 0
    place = lie.message.place(REMARKS) if of_message else lie.schema_message.table(HEADER).place(SCHEMA_REMARKS)
    end = begin + 8 + lie.number("<I", begin + 4)
    # A vector of `count` references to the table behind it, which refers to the text behind that twice.
    at = end + (-(end - begin - 8)) % 4
    references = b"".join(struct.pack("<I", 4 * (count - one)) for one in range(count))
    pair = struct.pack("<iII", -12, 16, 12) + struct.pack("<HHHH", 8, 12, 4, 8)
    text = struct.pack("<I", length) + b"x" * length + b"\0"
    added = bytes(at - end) + struct.pack("<I", count) + references + pair + text
    added += bytes(-len(added) % 8)
    lie.put("<I", place, at - place)
    lie.put("<I", begin + 4, end - begin - 8 + len(added))
    lie.bytes[end:end] = added
    return bytes(lie.bytes)
