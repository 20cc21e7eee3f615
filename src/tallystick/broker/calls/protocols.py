"""One call, made once in its protocol and in dtm's manner, and what came of it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from tallystick.broker.calls.verdicts import (
    CallVerdict,
    of_failure,
    of_grpc,
    of_http,
    of_http_by_dtm,
    of_json_rpc,
    of_json_rpc_by_dtm,
)
from tallystick.broker.outbound.answer import OutboundFailed, unsendable
from tallystick.broker.outbound.headers import grpc_marks, joined, marks, metadata_of
from tallystick.broker.outbound.outbound import Outbound
from tallystick.core.calls import OutgoingCall, json_rpc_params


async def make_call(
    outbound: Outbound, gid: str, call: OutgoingCall, timeout_ms: int, dtm: bool = False
) -> CallVerdict:
    """Make the call; whatever happens is a verdict. `timeout_ms` is for calls without a timeout, `dtm` for those whose
    answers follow dtm's rule."""
    seconds = (call.timeout_ms or timeout_ms) / 1000
    try:
        return await _MAKERS[call.protocol](outbound, gid, call, seconds, dtm)
    except OutboundFailed as failed:
        return of_failure(failed)
    except ValueError as error:  # headers that cannot be sent
        return CallVerdict("error", str(error), reached=False)


async def _over_http(outbound: Outbound, gid: str, call: OutgoingCall, seconds: float, dtm: bool) -> CallVerdict:
    """The body is the message; what it belongs to stands in the query."""
    query = f"gid={quote(gid, safe='')}&trans_type=msg&branch_id={call.branch}&op=action"
    method = "POST" if call.body else "GET"
    answered = await outbound.request(method, call.url, _headers(gid, call), call.body, seconds, query)
    return of_http_by_dtm(answered) if dtm else of_http(answered)


async def _over_json_rpc(outbound: Outbound, gid: str, call: OutgoingCall, seconds: float, dtm: bool) -> CallVerdict:
    """The message becomes the parameters, and what it belongs to stands among them."""
    (method,) = parse_qs(urlsplit(call.url).query).get("method", ("",))[:1]
    params: dict[str, Any] = {**_parameters(call.body), **marks(gid, call.branch, "action")}
    request = {"jsonrpc": "2.0", "id": f"{gid}/{call.branch}", "method": method, "params": params}
    body = msgspec.json.encode(request)
    answered = await outbound.request("POST", call.url, _headers(gid, call), body, seconds)
    return of_json_rpc_by_dtm(answered) if dtm else of_json_rpc(answered)


async def _over_grpc(outbound: Outbound, gid: str, call: OutgoingCall, seconds: float, _: bool) -> CallVerdict:
    """Over gRPC dtm's rule and the native one are the same."""
    metadata = [*grpc_marks(gid, call.branch, "action"), *metadata_of(call.headers)]
    return of_grpc(await outbound.grpc(call.url, metadata, call.body, seconds))


_MAKERS = {"http": _over_http, "json-rpc": _over_json_rpc, "grpc": _over_grpc}


def _headers(gid: str, call: OutgoingCall) -> dict[str, str]:
    """What a service needs to know a repetition by, and the call's own headers."""
    ours = {
        "Content-Type": "application/json",
        "Idempotency-Key": f"{gid}/{call.branch}",
        "Tallystick-Gid": gid,
        "Tallystick-Branch": call.branch,
    }
    return joined(ours, call.headers)


def _parameters(body: bytes) -> dict[str, Any]:
    """Calls that were stored by earlier versions may have any body."""
    try:
        return json_rpc_params(body)
    except ValueError as error:
        raise unsendable(f"body: {error}") from error
