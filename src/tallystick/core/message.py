"""Messages: as a producer hands them in, and as a queue keeps them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct, structs

from tallystick.core.names import HeaderName, HeaderValue, Key, Tag, TopicName

# Milliseconds since the epoch, to the end of the year 9999: the last that dates in Python, Arrow and Spark can hold.
LATEST_MS = 253_402_300_799_999
Timestamp = Annotated[int, Meta(ge=0, le=LATEST_MS)]
MAX_TIMEOUT_MS = 600_000
Timeout = Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)]  # milliseconds that a service may take to answer
MAX_INVISIBLE_MS = 12 * 3600 * 1000
Invisible = Annotated[int, Meta(ge=0, le=MAX_INVISIBLE_MS)]  # milliseconds that a message is kept under lease
MAX_DELAY_DAYS = 366
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_DELAY_DAYS * 24 * 3600 * 1000)]


class KeptMessage(Struct, omit_defaults=True, gc=False):
    """A message as a store keeps it until it is visible. Decoded without the checks that it passed on its way in: they
    would cost more than the rest."""

    topic: str
    value: bytes
    key: str | None = None
    headers: dict[str, str] | None = None
    tag: str | None = None
    deliver_at: int = 0
    born_at: int = 0
    delay_ms: int = 0


class OutgoingMessage(KeptMessage, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A message on its way in. `delay_ms` holds it back for that long from when the broker has it (of a transaction,
    its prepare), `deliver_at` until a time (milliseconds since the epoch); at most one of them, 0 means at once."""

    topic: TopicName
    value: bytes
    key: Key | None = None
    headers: dict[HeaderName, HeaderValue] | None = None
    tag: Tag | None = None
    deliver_at: Timestamp = 0
    born_at: Timestamp = 0
    delay_ms: Milliseconds = 0


_Message = TypeVar("_Message", bound=KeptMessage)


def dated(message: _Message, since: int) -> _Message:
    """The message with the time of its delivery, now that it is known from when its delay counts."""
    if not message.delay_ms:
        return message
    return structs.replace(message, deliver_at=since + message.delay_ms, delay_ms=0)


class Chunk(Struct, array_like=True, gc=False):
    """What one group commit appended to one queue, column by column.

    Columns instead of rows: a bulk reader turns each into an Arrow array without touching the messages,
    and a fetch hands the stored bytes to the client as they are.
    """

    base: int  # offset of the first message
    stored_at: int
    gids: list[str]
    sequences: list[int]  # the message's place in its transaction
    keys: list[str | None]
    values: list[bytes]
    headers: list[dict[str, str] | None]
    tags: list[str | None]
    born_at: list[int]

    def __len__(self) -> int:
        return len(self.values)


# What a reader makes of columns: nothing (it gets chunks, made for it), or all of them, or all but the values.
Welcome = Literal["none", "no values", "all"]


class StoredColumns(Struct, gc=False):
    """Consecutive messages of a queue that are stored in columns (columnar/body.py), both halves as they are stored;
    without the values if these were not asked for."""

    base: int  # offset of the first message
    stored_at: int
    born_at: int
    gid: str
    first: int  # the sequence in its transaction of the message that has the sequence 0 here
    columns: bytes
    values: bytes

    def __len__(self) -> int:
        """In bytes, as of a chunk."""
        return len(self.columns) + len(self.values)


class Slice(Struct):
    """A piece of a queue: chunks as stored, with the offsets they cover. Where columns are welcome, a slice holds
    either chunks or columns."""

    start: int  # first offset still kept
    next: int  # where to go on reading
    end: int  # one past the last visible offset
    chunks: list[bytes]
    created_at: int  # of the topic: a name may have had several
    columns: list[StoredColumns] = []


class StoredMessage(Struct, omit_defaults=True, gc=False):
    """A message in a queue, as consumers see it."""

    topic: str
    queue: int
    offset: int
    value: bytes
    key: str | None = None
    headers: dict[str, str] | None = None
    tag: str | None = None
    gid: str = ""
    sequence: int = 0
    born_at: int = 0
    stored_at: int = 0

    def id(self, store: str) -> str:
        """What makes this message one and the same wherever it is delivered again."""
        if self.gid:
            return f"{self.gid}/{self.sequence}"
        return f"{store}/{self.topic}/{self.queue}/{self.offset}"


def messages_of(chunk: Chunk, topic: str, queue: int, start: int = 0) -> list[StoredMessage]:
    """The messages of a chunk from offset `start` on."""
    skip = max(0, start - chunk.base)
    return [
        StoredMessage(
            topic,
            queue,
            chunk.base + index,
            chunk.values[index],
            chunk.keys[index],
            chunk.headers[index],
            chunk.tags[index],
            chunk.gids[index],
            chunk.sequences[index],
            chunk.born_at[index],
            chunk.stored_at,
        )
        for index in range(skip, len(chunk.values))
    ]
