"""Topics and reading them by offset."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from tallystick.api.http.arrow import read_columns
from tallystick.api.http.arrow_out import QueueStream
from tallystick.api.http.json_messages import MessageOut, TrimIn, readable
from tallystick.api.http.route import Asked
from tallystick.api.serving.asgi import HttpAnswer
from tallystick.core.errors import InvalidRequest
from tallystick.core.message import Chunk, messages_of
from tallystick.core.names import check_name
from tallystick.core.wire import ARROW, MSGPACK, FetchResponse, TopicSpec, TopicView

Number = Annotated[int, Meta(ge=0, le=2**62)]
BYTES_AT_ONCE = 4 * 1024 * 1024
_decode = msgspec.msgpack.Decoder(Chunk).decode


class TopicsQuery(Struct):
    names: Annotated[str, Meta(description="only these, separated by commas")] | None = None
    position: Annotated[Number, Meta(description="wait while it is still this one")] | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="how long to wait at most")] = 0


class TopicList(Struct):
    """`position` is another number as soon as one of these topics has more messages."""

    topics: list[TopicView]
    position: int


class TimeQuery(Struct):
    timestamp: Annotated[Number, Meta(description="milliseconds since the epoch")] = 0


class TopicOffsets(Struct):
    topic: str
    offsets: list[int]


class FetchQuery(Struct):
    offset: Annotated[Number, Meta(description="first offset")] = 0
    max: Annotated[int, Meta(ge=1, le=100_000, description="messages at most")] = 1_000
    max_bytes: Annotated[int, Meta(ge=1, description="bytes at most")] | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="long poll")] = 0
    end: Annotated[Number, Meta(description="Arrow: offset to stop at")] | None = None
    columns: Annotated[str, Meta(description="Arrow: only these, separated by commas")] | None = None
    called: Annotated[int, Meta(ge=0, lt=2**31, description="Arrow: the queue's number in the rows")] | None = None


class ReadMessages(Struct):
    """Messages as JSON shows them. `start` is the first offset that is kept, `next` where to go on, `end` one past the
    last; `store` names whose offsets these are."""

    start: int
    next: int
    end: int
    messages: list[MessageOut]
    store: str


async def list_(asked: Asked, query: TopicsQuery) -> TopicList:
    given = query.names
    names = None if given is None else [check_name(name, "names") for name in given.split(",") if name]
    return TopicList(*await asked.wait(asked.door.ends(names, query.position, query.wait_ms)))


async def offsets(asked: Asked, query: TimeQuery) -> TopicOffsets:
    return TopicOffsets(asked.topic, await asked.door.offsets_at(asked.topic, query.timestamp))


async def trim(asked: Asked, sent: TrimIn) -> TopicView:
    await asked.door.trim(asked.topic, sent.offsets)
    return await asked.door.topic(asked.topic)


async def show(asked: Asked) -> TopicView:
    return await asked.door.topic(asked.topic)


async def put(asked: Asked, sent: TopicSpec) -> TopicView:
    return await asked.door.put_topic(asked.topic, sent)


async def delete(asked: Asked) -> None:
    await asked.door.delete_topic(asked.topic)


async def fetch(asked: Asked, query: FetchQuery) -> ReadMessages | FetchResponse | HttpAnswer:
    door, topic, queue, offset = asked.door, asked.topic, asked.number("queue"), query.offset
    if asked.accepts(ARROW):
        return await _arrow(asked, topic, queue, query)
    max_bytes = query.max_bytes or BYTES_AT_ONCE
    if query.max_bytes is not None and max_bytes > door.limits.request_bytes:
        most = f"is not a number from 1 to {door.limits.request_bytes}"
        raise InvalidRequest(f"max_bytes: {max_bytes} {most}", field="max_bytes")
    piece = await asked.wait(door.fetch(topic, queue, offset, query.max, max_bytes, query.wait_ms))
    if asked.accepts(MSGPACK):
        raw = [msgspec.Raw(chunk) for chunk in piece.chunks]
        return FetchResponse(topic, queue, piece.start, piece.next, piece.end, raw, door.store_id)
    found = [one for raw in piece.chunks for one in messages_of(_decode(raw), topic, queue, offset)][: query.max]
    follows = found[-1].offset + 1 if found else piece.next
    return ReadMessages(piece.start, follows, piece.end, [readable(message) for message in found], door.store_id)


async def _arrow(asked: Asked, topic: str, queue: int, query: FetchQuery) -> HttpAnswer:
    door = asked.door
    stream = QueueStream(door, topic, queue, query.offset, query.end, read_columns(query.columns), query.called)
    known = await stream.begin()
    headers = {
        "Tallystick-Start": str(known.start),
        "Tallystick-Next": str(max(query.offset, stream.end)),
        "Tallystick-End": str(known.end),
        "Tallystick-Store": door.store_id,
        "Tallystick-Created": str(known.created_at),
    }
    return HttpAnswer(stream.pieces(), ARROW, headers=headers)
