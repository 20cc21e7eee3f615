"""Bodies: read within a limit, decoded by their content type, encoded as the caller accepts."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tallystick.api.http.problems import DECODING, undecodable
from tallystick.core.errors import InvalidRequest, TooLarge
from tallystick.core.wire import JSON, MSGPACK

T = TypeVar("T")


def check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(f"the request has more than {limit} bytes, the limit of this broker")


def declared_size(header: str | None) -> int:
    """The Content-Length, judged before a single byte of the body is read."""
    if header is None:
        return 0
    if not header.isascii() or not header.isdigit():
        raise InvalidRequest(f"Content-Length: {header[:40]!r} is not a number", field="Content-Length")
    return int(header)


async def read_body(request: Request, limit: int) -> bytes:
    check_size(declared_size(request.headers.get("content-length")), limit)
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        check_size(size, limit)
        pieces.append(piece)
    return b"".join(pieces)


def media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


async def decoded(request: Request, kind: type[T], limit: int) -> T:
    """The body as `kind`; an empty one as an object without fields."""
    body = await read_body(request, limit)
    sent = media_type(request.headers.get("content-type", JSON))
    try:
        if sent == MSGPACK:
            return msgspec.msgpack.decode(body or b"\x80", type=kind)
        if sent in (JSON, "", "application/x-www-form-urlencoded", "text/plain"):  # curl's defaults
            return msgspec.json.decode(body or b"{}", type=kind)
    except DECODING as error:
        raise undecodable(error) from error
    raise InvalidRequest(f"Content-Type: {sent!r} is not one of {JSON} and {MSGPACK}", field="Content-Type")


def wants_msgpack(request: Request) -> bool:
    return MSGPACK in request.headers.get("accept", "")


def respond(request: Request, content: Any, status: int = 200) -> Response:
    if wants_msgpack(request):
        return Response(msgspec.msgpack.encode(content), status, media_type=MSGPACK)
    return Response(msgspec.json.encode(content), status, media_type=JSON)
