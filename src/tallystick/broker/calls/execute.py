"""One call, whatever its protocol: made once, and what came of it."""

from __future__ import annotations

from tallystick.broker.answered import OutboundFailed
from tallystick.broker.calls.headers import metadata_of
from tallystick.broker.calls.http import call_http, call_json_rpc, is_json_rpc, marks
from tallystick.broker.calls.results import Verdict, of_failure, of_grpc
from tallystick.broker.outbound import Outbound
from tallystick.core.calls import OutgoingCall, Protocol


def protocol_of(call: OutgoingCall) -> Protocol:
    """How a call is made. The URL decides before the transaction does: one of dtm's gRPC transactions may have branches
    with an http URL."""
    if call.url.startswith("grpc://"):
        return "grpc"
    return "json-rpc" if is_json_rpc(call) else "http"


async def execute(outbound: Outbound, gid: str, call: OutgoingCall, timeout_ms: int) -> Verdict:
    """Make the call; whatever happens is a verdict. `timeout_ms` is for calls that have none of their own."""
    seconds = (call.timeout_ms or timeout_ms) / 1000
    try:
        return await _MAKERS[protocol_of(call)](outbound, gid, call, seconds)
    except OutboundFailed as failed:
        return of_failure(failed)
    except ValueError as error:  # headers that cannot be sent
        return Verdict("error", str(error), reached=False)


async def call_grpc(outbound: Outbound, gid: str, call: OutgoingCall, seconds: float) -> Verdict:
    metadata = [*grpc_marks(gid, call.branch, "action"), *metadata_of(call.headers)]
    answer = await outbound.grpc(call.url, metadata, call.body, seconds)
    return of_grpc(answer.code, answer.details)


def grpc_marks(gid: str, branch: str, op: str) -> list[tuple[str, str | bytes]]:
    named: dict[str, str | bytes] = {**marks(gid, branch, op), "dtm": ""}
    return [(f"dtm-{name}", value) for name, value in named.items()]


_MAKERS = {"http": call_http, "json-rpc": call_json_rpc, "grpc": call_grpc}
