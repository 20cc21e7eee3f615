"""Calls: messages with a URL instead of a topic, which the broker delivers itself, over HTTP or gRPC."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from tallystick.core.errors import InvalidRequest
from tallystick.core.message import Milliseconds, Timeout
from tallystick.core.names import HeaderName, HeaderValue
from tallystick.core.urls import TOPIC_SCHEME

Protocol = Literal["http", "json-rpc", "grpc"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode

Url = Annotated[str, Meta(min_length=1, max_length=2048)]
Branch = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9._-]*\Z")]
Remark = Annotated[str, Meta(max_length=8192)]


def protocol_of(url: str, asked: Protocol) -> Protocol:
    """How a call to this URL is made where its sender asked for `asked`. The URL has the last word: the
    subscribers of one topic, and the branches of one of dtm's transactions, may differ; and JSON-RPC needs a method,
    which stands in it."""
    if url.startswith("grpc://"):
        return "grpc"
    return "json-rpc" if asked == "json-rpc" and "method" in url else "http"


def json_rpc_params(body: bytes) -> dict[str, Any]:
    """The parameters that a JSON-RPC call sends for this body; ValueError if it is not a JSON object."""
    if not body:
        return {}
    try:
        return _decode_object(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected a JSON object for a JSON-RPC call ({error})") from error


class OutgoingCall(Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A call on its way in.

    `url` is http(s)://..., grpc://host:port/package.Service/Method, or topic://name for every subscriber of a call
    topic. `delay_ms` counts from the time the transaction was prepared. `branch` names the call within its
    transaction; the store gives one to those that have none. `protocol` is what its sender asks for; where the URL
    says otherwise, the URL counts.
    """

    url: Url
    body: bytes = b""
    headers: dict[HeaderName, HeaderValue] | None = None
    protocol: Protocol = "http"
    timeout_ms: Timeout | None = None
    delay_ms: Milliseconds = 0
    branch: Branch = ""


class CallPolicy(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """How the calls of one transaction are made: one after the other or all at once, and how often they are tried."""

    concurrent: bool = False
    retry_ms: Milliseconds | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class CallSpec(Struct, array_like=True, gc=False):
    """The calls of a transaction as they are stored: call topics expanded, branches named."""

    calls: list[OutgoingCall] = []
    concurrent: bool = False
    retry_ms: int = 0  # 0: the broker's own
    max_attempts: int = 0
    remark: str = ""
    digest: bytes = b""  # of the calls as they were asked for, to know a repetition


CallOutcome = Literal["success", "failure", "ongoing", "error", "unreachable", "released"]
"""What came of a try: `failure` and `ongoing` are the service's own words, `error` any other answer, `unreachable`
no answer at all, `released` that it was not tried."""


class CallResult(Struct, gc=False):
    """What came of a try. `own`: the call failed although its host answers others, so it keeps its own wait."""

    gid: str
    index: int
    outcome: CallOutcome
    error: str = ""
    own: bool = False


CallState = Literal["held", "waiting", "done", "parked", "stopped", "dropped"]
"""`held`: its transaction has no outcome yet. `dropped`: it was rolled back. `parked`: every try is used up;
an operator may resume it. `stopped`: an operator ended it."""


class CallView(Struct, omit_defaults=True):
    """A call and what has come of it. `host_down`: it waits because its host does not answer and is only probed."""

    gid: str
    index: int
    branch: str
    url: str
    protocol: Protocol
    state: CallState
    attempts: int = 0
    next_at: int = 0
    last_error: str = ""
    finished_at: int = 0
    size: int = 0
    created_at: int = 0
    last_outcome: CallOutcome | None = None
    host_down: bool = False


class CallsView(Struct, omit_defaults=True):
    """A transaction's calls, and what has come of them all together."""

    gid: str
    transaction: Literal["prepared", "parked", "committed", "rolled_back"]
    state: CallState
    calls: list[CallView]
    concurrent: bool = False
    remark: str = ""
    check_target: str = ""
    created_at: int = 0
    resolved_at: int = 0
    finished_at: int = 0


class CallPage(Struct):
    calls: list[CallView]
    next: str | None


class Subscriber(Struct, omit_defaults=True):
    url: str
    remark: str = ""


class CallTopicView(Struct):
    """A call topic: who is called for it. `version` grows with every change."""

    topic: str
    subscribers: list[Subscriber]
    version: int
    created_at: int
    updated_at: int


def first_pass_over(view: CallsView) -> bool:
    """Whether every call that could be tried has had its first answer: in order, up to the first without success."""
    for call in view.calls:
        if call.state == "held" or (call.state == "waiting" and not call.attempts):
            return False
        if call.state != "done" and not view.concurrent:
            return True
    return True


def state_of_all(states: list[CallState]) -> CallState:
    """The worst that can still change comes first: what waits, then what an operator must look at."""
    ranking: tuple[CallState, ...] = ("waiting", "parked", "stopped", "held", "dropped")
    return next((state for state in ranking if state in states), "done")


def branch_of(call: OutgoingCall, place: int) -> str:
    """The name of a call within its transaction: its sender's, or its place among the calls, counted from 1."""
    return call.branch or f"{place:02d}"


def check_branches(calls: list[OutgoingCall]) -> None:
    """InvalidRequest if two calls surely have the same branch. Those of a call topic get theirs when its subscribers
    are known, and then are looked at again: here only two of the same topic surely collide."""
    named = {
        (call.url if call.url.startswith(TOPIC_SCHEME) else "", branch_of(call, place))
        for place, call in enumerate(calls, 1)
    }
    if len(named) < len(calls):
        raise InvalidRequest("calls: two calls have the same branch", field="calls")


def check_body(call: OutgoingCall, url: str, at: str) -> None:
    """Refuse a body that no call to this URL can carry, because it would be refused only after the commit."""
    if protocol_of(url, call.protocol) != "json-rpc":
        return
    try:
        json_rpc_params(call.body)
    except ValueError as error:
        shown = call.body[:80].decode(errors="replace")
        raise InvalidRequest(
            f"{at}.body: {error} (got {shown!r}). Send an object, or leave the body empty.", field=f"{at}.body"
        ) from error


def digest_of(calls: list[OutgoingCall], options: CallPolicy | None) -> bytes:
    """Tells a repeated request from one with other calls, without keeping both."""
    if not calls:
        return b""
    return hashlib.blake2b(msgspec.msgpack.encode((calls, options or CallPolicy())), digest_size=16).digest()


class HostView(Struct):
    """A host as an operator sees it. `open`: it does not answer, and only a probe is sent now and then."""

    name: str
    in_flight: int = 0
    open: bool = False
    failures: int = 0
    next_probe_at: int = 0
