"""dtm's rule for answers over HTTP and JSON-RPC, as its `HTTPResp2DtmError` and `RespAsErrorByJSONRPC` have it."""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.broker.outbound.answer import Answered

DtmResult = Literal["success", "failure", "ongoing", "error"]
FAILURE_CODE, ONGOING_CODE = -32901, -32902
_OF_CODE: dict[object, DtmResult] = {FAILURE_CODE: "failure", ONGOING_CODE: "ongoing"}


class JsonRpcError(msgspec.Struct):
    code: int | float = 0
    message: str = ""


class JsonRpcReply(msgspec.Struct):
    """All that matters of an envelope; dtm accepts one without `jsonrpc`."""

    error: JsonRpcError | None = None
    jsonrpc: str = ""


_decode_reply = msgspec.json.Decoder(JsonRpcReply | None).decode


def http_result(answered: Answered) -> DtmResult:
    """The order matters: a body with ONGOING or FAILURE decides whatever the status is, and any other 200 is a
    success."""
    if answered.status == 425 or b"ONGOING" in answered.body:
        return "ongoing"
    if answered.status == 409 or b"FAILURE" in answered.body:
        return "failure"
    return "success" if answered.status == 200 else "error"


def json_rpc_result(answered: Answered) -> DtmResult:
    """The same, and then the envelope's error. An object without one is a success; other content is an error."""
    result = http_result(answered)
    if result != "success":
        return result
    try:
        reply = _decode_reply(answered.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "error"
    return of_error(reply.error) if reply is not None and reply.error is not None else "success"


def check_result(answered: Answered) -> DtmResult:
    """The answer of a check-back. One with a JSON-RPC envelope is read as such; dtm asks no check-back by JSON-RPC."""
    result = http_result(answered)
    if result != "success":
        return result
    try:
        reply = _decode_reply(answered.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return result
    enveloped = reply is not None and reply.jsonrpc and reply.error is not None
    return of_error(reply.error) if enveloped and reply is not None and reply.error is not None else result


def of_error(error: JsonRpcError) -> DtmResult:
    return _OF_CODE.get(error.code, "error")
