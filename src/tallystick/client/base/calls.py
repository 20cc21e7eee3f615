"""Calls as users hand them in, and what they are told when not all of them are done."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from tallystick.client.base.encoding import encode
from tallystick.client.base.message import check_header_texts
from tallystick.client.base.times import milliseconds, milliseconds_or_none
from tallystick.client.base.values import encode_value
from tallystick.core import calls as wire
from tallystick.core.calls import CallsView, CallView, OutgoingCall, Protocol
from tallystick.core.errors import InvalidRequest, TallystickError
from tallystick.core.headers import check_headers
from tallystick.core.urls import TOPIC_SCHEME, check_url

WAIT_SECONDS = 60.0
"""How long `wait=True` waits."""

_SCHEMES = ("http://", "https://", "grpc://", TOPIC_SCHEME)

_decode_call = msgspec.msgpack.Decoder(OutgoingCall).decode
_decode_options = msgspec.msgpack.Decoder(wire.CallPolicy).decode


class CallOptions(Struct, frozen=True, kw_only=True):
    """How the calls of one transaction are made.

    One after the other, each when the one before has succeeded, or all at once (`concurrent`). `retry` is the wait in
    seconds before the second try, which doubles from there; after `max_attempts` tries a call is parked. Where nothing
    is said the broker's own settings count.
    """

    concurrent: bool = False
    retry: float | None = None
    max_attempts: int | None = None

    def on_the_wire(self) -> wire.CallPolicy:
        retry_ms = milliseconds_or_none(self.retry, "retry")
        options = wire.CallPolicy(self.concurrent, retry_ms, self.max_attempts)
        try:
            return _decode_options(encode(options))
        except msgspec.ValidationError as failure:
            raise InvalidRequest(f"call_options: {failure}", field="call_options") from failure


class RemarkedOptions(CallOptions, frozen=True, kw_only=True):
    """Options with the remark that the broker keeps beside the calls. `tallystick.dtm` marks its messages with it."""

    remark: str = ""


def remark_of(call_options: CallOptions | None) -> str:
    return call_options.remark if isinstance(call_options, RemarkedOptions) else ""


def policy_of(call_options: CallOptions | None) -> wire.CallPolicy | None:
    if call_options is None:
        return None
    if not isinstance(call_options, CallOptions):
        raise InvalidRequest(
            f"call_options: it must be CallOptions (got {type(call_options).__name__}). Give "
            "call_options=CallOptions(max_attempts=5).",
            field="call_options",
        )
    return call_options.on_the_wire()


class CallsNotFinished(TallystickError):
    """Not every call was done when the wait for them was over; the transaction itself is committed.

    The broker goes on with the calls that are waiting. `view` is what it said last, or None if it said nothing.
    """

    code = "calls_not_finished"

    def __init__(self, gid: str, view: CallsView | None, reason: str = "") -> None:
        self.gid = gid
        self.view = view
        said = [_unfinished(call) for call in view.calls if call.state != "done"] if view is not None else []
        why = "; ".join([*said, reason] if reason else said)
        super().__init__(f"transaction {gid} is committed, but not all of its calls are done: {why}", gid=gid)


def outgoing_call(
    url: str,
    body: Any = None,
    *,
    headers: dict[str, str] | None = None,
    timeout: float | None = None,
    delay: float | None = None,
    protocol: Protocol = "http",
    branch: str = "",
) -> OutgoingCall:
    """A call to make. Bytes go as they are, text as UTF-8, anything else as JSON; without a body it is a GET.

    `timeout` bounds one try, `delay` is how old the transaction must be before the first; both in seconds.
    """
    if not isinstance(url, str) or not url.startswith(_SCHEMES):
        raise InvalidRequest(
            f"url: {str(url)[:140]!r} cannot be called; give http://..., https://..., "
            "grpc://host:port/package.Service/Method or topic://name",
            field="url",
        )
    if headers is not None:
        check_header_texts(headers)
        check_headers(headers, "headers", url)
    check_url(url, "url")
    if url.startswith("grpc://"):
        protocol = "grpc"
    timeout_ms = milliseconds_or_none(timeout, "timeout")
    delay_ms = 0 if delay is None else milliseconds(delay, "delay")
    call = OutgoingCall(url, b"", headers, protocol, timeout_ms, delay_ms, branch)
    try:
        # Everything but the body, which may be large: a row in an outbox that no broker would take helps nobody.
        checked = _decode_call(encode(call))
    except msgspec.ValidationError as failure:
        raise InvalidRequest(f"call of {url[:140]!r}: {failure}", field="calls") from failure
    checked.body = b"" if body is None else encode_value(body, "body")
    return checked


def wait_seconds(wait: bool | float) -> float:
    """How long a caller wants to wait for calls; 0: not at all."""
    if isinstance(wait, bool):
        return WAIT_SECONDS if wait else 0.0
    if not isinstance(wait, int | float) or not 0 <= wait < float("inf"):
        raise InvalidRequest(f"wait: {wait!r} is neither True, False nor a time in seconds", field="wait")
    return float(wait)


def _unfinished(call: CallView) -> str:
    tries = "1 attempt" if call.attempts == 1 else f"{call.attempts} attempts"
    reason = f": {call.last_error}" if call.last_error else ""
    return f"{call.branch} {call.url} is {call.state} after {tries}{reason}"
