"""Topics and reading them by offset."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tallystick.api.http import arrow
from tallystick.api.http.bodies import respond, wants_msgpack
from tallystick.api.http.people import TrimIn, readable
from tallystick.api.http.routes.context import body_of, broker_of, number, topic_of, while_connected
from tallystick.core.errors import NotFound
from tallystick.core.message import Chunk, messages_of
from tallystick.core.names import check_name
from tallystick.core.wire import ARROW, FetchResponse, TopicSpec
from tallystick.store.protocol import DeleteTopic, Progress, PutTopic, Slice, TrimTo

TRIMMED_AT_ONCE = 5_000
_decode = msgspec.msgpack.Decoder(Chunk).decode


async def list_(request: Request) -> Response:
    broker, given = broker_of(request), request.query_params.get("names")
    names = None if given is None else [check_name(name, "names") for name in given.split(",") if name]
    position = number(request, "position", 0) if "position" in request.query_params else None
    wait_ms = number(request, "wait_ms", 0, 0, 60_000)
    views, now_at = await while_connected(request, broker.ends(names, position, wait_ms))
    return respond(request, {"topics": views, "position": now_at})


async def offsets(request: Request) -> Response:
    store, topic, timestamp = broker_of(request).store, topic_of(request), number(request, "timestamp", 0)
    return respond(request, {"topic": topic, "offsets": await asyncio.to_thread(store.offsets_at, topic, timestamp)})


async def trim(request: Request) -> Response:
    topic, sent, broker = topic_of(request), await body_of(request, TrimIn), broker_of(request)
    progress = await broker.one(TrimTo(topic, sent.offsets, TRIMMED_AT_ONCE))
    while isinstance(progress, Progress) and progress.more:
        progress = await broker.one(TrimTo(topic, sent.offsets, TRIMMED_AT_ONCE))
    return await show(request)


async def show(request: Request) -> Response:
    name = topic_of(request)
    view = broker_of(request).store.topic(name)
    if view is None:
        raise NotFound(f"there is no topic {name!r}", field="topic")
    return respond(request, view)


async def put(request: Request) -> Response:
    spec = await body_of(request, TopicSpec)
    return respond(request, await broker_of(request).one(PutTopic(topic_of(request), spec.queues, spec.retention_ms)))


async def delete(request: Request) -> Response:
    await broker_of(request).one(DeleteTopic(topic_of(request)))
    return Response(status_code=204)


async def fetch(request: Request) -> Response:
    broker, topic, queue = broker_of(request), topic_of(request), int(request.path_params["queue"])
    offset = number(request, "offset", 0)
    if ARROW in request.headers.get("accept", ""):
        return _arrow(request, topic, queue, offset)
    most = number(request, "max", 1_000, 1, 100_000)
    max_bytes = number(request, "max_bytes", 4 * 1024 * 1024, 1, broker.limits.request_bytes)
    wait_ms = number(request, "wait_ms", 0, 0, 60_000)
    piece = await while_connected(request, broker.fetch(topic, queue, offset, most, max_bytes, wait_ms))
    if wants_msgpack(request):
        raw = [msgspec.Raw(chunk) for chunk in piece.chunks]
        return respond(request, FetchResponse(topic, queue, piece.start, piece.next, piece.end, raw, broker.store.id))
    return respond(request, {**_readable(piece, topic, queue, offset, most), "store": broker.store.id})


def _readable(piece: Slice, topic: str, queue: int, offset: int, most: int) -> dict[str, object]:
    messages = [one for raw in piece.chunks for one in messages_of(_decode(raw), topic, queue, offset)][:most]
    follows = messages[-1].offset + 1 if messages else piece.next
    return {
        "start": piece.start,
        "next": follows,
        "end": piece.end,
        "messages": [readable(message) for message in messages],
    }


def _arrow(request: Request, topic: str, queue: int, offset: int) -> Response:
    broker = broker_of(request)
    # Read once before the answer begins: an error after its first byte could not be told any more.
    known = broker.store.read(topic, queue, offset, 1, 1)
    end = min(known.end, number(request, "end", known.end))
    names = arrow.read_columns(request.query_params.get("columns"))
    headers = {
        "Tallystick-Start": str(known.start),
        "Tallystick-Next": str(max(offset, end)),
        "Tallystick-End": str(known.end),
        "Tallystick-Store": broker.store.id,
        "Tallystick-Created": str(known.created_at),
    }
    content = arrow.stream(broker, topic, queue, offset, end, names)
    return StreamingResponse(content, media_type=ARROW, headers=headers)
