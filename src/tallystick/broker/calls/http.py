"""Calls over HTTP and JSON-RPC, in dtm's manner."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from tallystick.broker.answered import unsendable
from tallystick.broker.calls.headers import joined
from tallystick.broker.calls.results import Verdict, of_http, of_json_rpc
from tallystick.broker.outbound import Outbound
from tallystick.core.calls import OutgoingCall


def marks(gid: str, branch: str, op: str) -> dict[str, str]:
    """Which transaction a request belongs to and what it is for, in dtm's words."""
    return {"gid": gid, "trans_type": "msg", "branch_id": branch, "op": op}


def _headers(gid: str, call: OutgoingCall) -> dict[str, str]:
    """What a service needs to know a repetition by, and the call's own headers."""
    ours = {
        "Content-Type": "application/json",
        "Idempotency-Key": f"{gid}/{call.branch}",
        "Tallystick-Gid": gid,
        "Tallystick-Branch": call.branch,
    }
    return joined(ours, call.headers)


async def call_http(outbound: Outbound, gid: str, call: OutgoingCall, seconds: float) -> Verdict:
    """The body is the message; what it belongs to stands in the query."""
    query = f"gid={quote(gid, safe='')}&trans_type=msg&branch_id={call.branch}&op=action"
    method = "POST" if call.body else "GET"
    return of_http(await outbound.request(method, call.url, _headers(gid, call), call.body, seconds, query))


async def call_json_rpc(outbound: Outbound, gid: str, call: OutgoingCall, seconds: float) -> Verdict:
    """The message becomes the parameters, and what it belongs to stands among them."""
    (method,) = parse_qs(urlsplit(call.url).query).get("method", ("",))[:1]
    params: dict[str, Any] = {**_parameters(call.body), **marks(gid, call.branch, "action")}
    request = {"jsonrpc": "2.0", "id": f"{gid}/{call.branch}", "method": method, "params": params}
    body = msgspec.json.encode(request)
    return of_json_rpc(await outbound.request("POST", call.url, _headers(gid, call), body, seconds))


def _parameters(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unsendable(f"the body of a JSON-RPC call must be a JSON object: {error}") from error


def is_json_rpc(call: OutgoingCall) -> bool:
    return call.protocol == "json-rpc" and "method" in call.url
