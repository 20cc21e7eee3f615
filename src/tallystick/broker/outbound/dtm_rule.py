"""dtm's rule for answers over HTTP and JSON-RPC, as its `HTTPResp2DtmError` and `RespAsErrorByJSONRPC` have it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tallystick.broker.outbound.answer import Answered

DtmResult = Literal["success", "failure", "ongoing", "error"]
FAILURE_CODE, ONGOING_CODE = -32901, -32902
_OF_CODE: dict[object, DtmResult] = {FAILURE_CODE: "failure", ONGOING_CODE: "ongoing"}


class JsonRpcError(msgspec.Struct):
    code: int | float = 0
    message: str = ""


class JsonRpcReply(msgspec.Struct):
    """The fields of a JSON-RPC answer that the rule reads, of any type. An object with `jsonrpc` is an envelope."""

    error: Any = None
    jsonrpc: Any = msgspec.UNSET


_decode_reply = msgspec.json.Decoder(JsonRpcReply | None).decode


def http_result(answered: Answered) -> DtmResult:
    """The order matters: a body with ONGOING or FAILURE decides whatever the status is, and any other 200 is a
    success. An encoded body may hold either word, so it leaves only 425 clear."""
    if answered.status == 425:
        return "ongoing"
    if answered.coding:
        return "error"
    if b"ONGOING" in answered.body:
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
    return "success" if reply is None else of_error(reply.error)


def check_result(answered: Answered) -> DtmResult:
    """The answer of a check-back. dtm sends none by JSON-RPC, but an answer in an envelope is read as one: an error
    that is not understood must not commit."""
    result = http_result(answered)
    if result != "success":
        return result
    try:
        reply = _decode_reply(answered.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Perhaps an envelope, such as one with half a surrogate pair in its message.
        return "error" if b'"jsonrpc"' in answered.body else result
    return result if reply is None or reply.jsonrpc is msgspec.UNSET else of_error(reply.error)


def of_error(error: Any) -> DtmResult:
    """The result for the `error` of a JSON-RPC answer, of any type. Only its absence (`None`) is a success."""
    if error is None:
        return "success"
    code = error.get("code") if isinstance(error, dict) else None
    return _OF_CODE.get(code, "error") if isinstance(code, int | float) else "error"
