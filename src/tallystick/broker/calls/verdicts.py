"""What an answer means for a call: natively, and by dtm's rule for calls that came through dtm's interfaces.

Natively the status decides first, and the body can only turn a success into something else.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from tallystick.broker.outbound.answer import Answered, GrpcAnswer, OutboundFailed, encoded, too_long
from tallystick.broker.outbound.dtm_rule import (
    DtmResult,
    JsonRpcError,
    http_result,
    json_rpc_result,
    of_error,
)
from tallystick.core.calls import CallOutcome

MAX_TEXT = 200
_UNREACHABLE_STATUS = (502, 503, 504)  # a gateway speaks for a service that it cannot reach
_WORDS: dict[str, CallOutcome] = {"FAILURE": "failure", "ONGOING": "ongoing"}
_WORD_IN_A_PIECE = re.compile(rb'"dtm_result"\s*:\s*"(FAILURE|ONGOING)"')


class CallVerdict(NamedTuple):
    outcome: CallOutcome
    error: str = ""
    reached: bool = True  # whether the service's host had its say: what the circuit breaker wants to know
    broken: bool = False  # whether there was no connection, or it broke


SUCCESS = CallVerdict("success")


class _Body(msgspec.Struct):
    dtm_result: str | None = None


class _Reply(msgspec.Struct):
    jsonrpc: str
    error: JsonRpcError | None = None


def of_http(answered: Answered) -> CallVerdict:
    """2xx is a success unless the body says otherwise; 409, 425 and a gateway's 502, 503, 504 have their meaning;
    everything else, redirects too, is an error."""
    status = answered.status
    if 200 <= status < 300:
        if answered.coding:
            return CallVerdict("error", encoded(answered))
        word = _word(answered)
        return SUCCESS if word is None else CallVerdict(word, _shown(answered))
    if status == 409:
        return CallVerdict("failure", _shown(answered))
    if status == 425:
        return CallVerdict("ongoing", _shown(answered))
    if status in _UNREACHABLE_STATUS:
        return CallVerdict("unreachable", _shown(answered), reached=False)
    return CallVerdict("error", _shown(answered))


def _word(answered: Answered) -> CallOutcome | None:
    """FAILURE or ONGOING, as the whole text or as `dtm_result`; nothing else in a body counts."""
    body = answered.body
    if not body:
        return None
    if answered.cut:
        found = _WORD_IN_A_PIECE.search(body)
        return _WORDS[found.group(1).decode()] if found else None
    try:
        said = msgspec.json.decode(body, type=_Body | str)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _WORDS.get(body[:MAX_TEXT].decode(errors="replace").strip()) if len(body) < MAX_TEXT else None
    return _WORDS.get((said if isinstance(said, str) else said.dtm_result) or "")


def of_json_rpc(answered: Answered) -> CallVerdict:
    """The status as for HTTP; within a 2xx the error's code decides, and what is no JSON-RPC is no success."""
    verdict = of_http(answered)
    if not 200 <= answered.status < 300 or answered.coding:
        return verdict
    try:
        reply = msgspec.json.decode(answered.body, type=_Reply)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return CallVerdict("error", f"no JSON-RPC answer: {_text(answered.body)}")
    if reply.error is None:
        return verdict
    shown = f"error {reply.error.code}: {reply.error.message[:MAX_TEXT]}"
    return CallVerdict(of_error({"code": reply.error.code}), shown)


def of_http_by_dtm(answered: Answered) -> CallVerdict:
    return _by_dtm(http_result(answered), answered)


def of_json_rpc_by_dtm(answered: Answered) -> CallVerdict:
    return _by_dtm(json_rpc_result(answered), answered)


def _by_dtm(result: DtmResult, answered: Answered) -> CallVerdict:
    """A success that was cut is an error, because the rest may hold FAILURE or ONGOING."""
    if answered.cut and not answered.coding and answered.status == 200 and result in ("success", "error"):
        return CallVerdict("error", too_long(answered))
    if result == "success":
        return SUCCESS
    if result == "error" and answered.status in _UNREACHABLE_STATUS:
        return CallVerdict("unreachable", _shown(answered), reached=False)
    return CallVerdict(result, _shown(answered))


def of_grpc(answer: GrpcAnswer) -> CallVerdict:
    if answer.code == "OK":
        return SUCCESS
    shown = f"{answer.code}: {answer.details[:MAX_TEXT]}"
    if answer.code == "ABORTED":
        return CallVerdict("ongoing" if answer.details == "ONGOING" else "failure", shown)
    if answer.code == "FAILED_PRECONDITION":
        return CallVerdict("ongoing", shown)
    if answer.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        return CallVerdict("unreachable", shown, reached=False)
    return CallVerdict("error", shown)


def of_failure(failed: OutboundFailed) -> CallVerdict:
    """No answer, or none that could be read."""
    if failed.kind in ("network", "timeout"):
        return CallVerdict("unreachable", str(failed), reached=False, broken=failed.kind == "network")
    return CallVerdict("error", str(failed), reached=failed.kind == "protocol")


def _shown(answered: Answered) -> str:
    if answered.coding:
        return encoded(answered)
    return f"status {answered.status}: {_text(answered.body)}".rstrip(": ")


def _text(body: bytes) -> str:
    """The beginning of a body, fit to be shown in one line."""
    return " ".join(body[: 4 * MAX_TEXT].decode(errors="replace").split())[:MAX_TEXT]
