"""`POST /v1/batch`, the client library's way in: plain ASGI, because every layer here is paid by each transaction."""

from __future__ import annotations

import msgspec

from tallystick.api.http.route import Asked
from tallystick.api.serving.asgi import Receive, Scope, Send, answer_raw, read_raw
from tallystick.api.serving.problems import DECODING, problem_of, undecodable
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import InvalidRequest
from tallystick.core.wire import JSON, MSGPACK, PROBLEM, BatchRequest, BatchResponse

_decode_msgpack = msgspec.msgpack.Decoder(BatchRequest).decode
_decode_json = msgspec.json.Decoder(BatchRequest).decode
_encode_msgpack = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


async def batch(asked: Asked, sent: BatchRequest) -> BatchResponse:
    """What the route says of itself; `handle_batch` does the same with less around it."""
    return BatchResponse(await asked.door.batch(sent.ops))


async def handle_batch(door: BrokerDoor, scope: Scope, receive: Receive, send: Send) -> int:
    """Answer one request; returns the status for the metrics."""
    try:
        headers = dict(scope["headers"])
        body = await read_raw(receive, headers, door.limits.request_bytes)
        sent = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
        request = _decode(sent, body)
        results = await door.batch(request.ops, len(body))
    except Exception as error:
        status, problem, more = problem_of(error)
        await answer_raw(send, status, PROBLEM, problem, more)
        return status
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
