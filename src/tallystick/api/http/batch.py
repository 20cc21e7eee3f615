"""`POST /v1/batch`, the client library's way in: plain ASGI, because every layer here is paid by each transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from tallystick.api.http.bodies import check_size, declared_size
from tallystick.api.http.problems import DECODING, as_tallystick_error, headers_of, problem_of, undecodable
from tallystick.broker.broker import Broker
from tallystick.core.errors import InvalidRequest
from tallystick.core.wire import JSON, MSGPACK, PROBLEM, BatchRequest, BatchResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_decode_msgpack = msgspec.msgpack.Decoder(BatchRequest).decode
_decode_json = msgspec.json.Decoder(BatchRequest).decode
_encode_msgpack = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


async def handle_batch(broker: Broker, scope: Scope, receive: Receive, send: Send) -> int:
    """Answer one request; returns the status for the metrics."""
    try:
        headers = dict(scope["headers"])
        body = await read_raw(receive, headers, broker.limits.request_bytes)
        sent = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
        request = _decode(sent, body)
        results = await broker.batch(request.ops, len(body))
    except Exception as error:
        return await _refuse(send, error)
    if b"msgpack" in headers.get(b"accept", sent):
        await answer_raw(send, 200, MSGPACK, _encode_msgpack(BatchResponse(results)))
    else:
        await answer_raw(send, 200, JSON, _encode_json(BatchResponse(results)))
    return 200


def _decode(sent: bytes, body: bytes) -> BatchRequest:
    try:
        if sent == b"application/msgpack":
            return _decode_msgpack(body)
        if sent == b"application/json":
            return _decode_json(body)
    except DECODING as error:
        raise undecodable(error) from error
    raise InvalidRequest(f"Content-Type: not one of {JSON} and {MSGPACK}", field="Content-Type")


async def read_raw(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    """The body within a limit, for handlers that do without Starlette."""
    declared = headers.get(b"content-length")
    check_size(declared_size(declared.decode("latin-1") if declared else None), limit)
    event = await receive()
    body: bytes = event.get("body", b"")
    if not event.get("more_body"):
        check_size(len(body), limit)
        return body
    pieces, size = [body], len(body)
    while event.get("more_body"):
        event = await receive()
        if event["type"] == "http.disconnect":
            raise InvalidRequest("the connection ended before the body did")
        piece = event.get("body", b"")
        size += len(piece)
        check_size(size, limit)
        pieces.append(piece)
    return b"".join(pieces)


async def _refuse(send: Send, error: Exception) -> int:
    known = as_tallystick_error(error)
    await answer_raw(send, known.status, PROBLEM, msgspec.json.encode(problem_of(known)), headers_of(known))
    return known.status


async def answer_raw(send: Send, status: int, media_type: str, body: bytes, more: dict[str, str] | None = None) -> None:
    headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in (more or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
