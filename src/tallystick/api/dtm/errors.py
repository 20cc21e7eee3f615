"""What dtm's clients are told when something is not done: three kinds, each with its status in every protocol."""

from __future__ import annotations

import re
from typing import ClassVar

from tallystick.api.serving.problems import as_tallystick_error
from tallystick.core.errors import Forbidden, TallystickError

# StorePlaces in the broker's operations, as dtm's requests call them.
_PLACES = [
    (re.compile(r"\b(?:ops\[\d+\]\.)?calls\[(\d+)\]\.url\b"), r"steps[\1].action"),
    (re.compile(r"\b(?:ops\[\d+\]\.)?calls\[(\d+)\]\.body\b"), r"payloads[\1]"),
    (re.compile(r"\bops\[\d+\]\.(?:calls\[\d+\]|check)\.headers\b"), "branch_headers"),
    (re.compile(r"\bops\[\d+\]\.calls\b"), "steps"),
    (re.compile(r"\bops\[\d+\]\.check\.(?:target|via)\b"), "query_prepared"),
    (re.compile(r"\bops\[\d+\]\."), ""),
    (re.compile(r"^after: "), "position: "),
    (re.compile(r"^(topic|url): must not be empty$"), r"empty \1"),
]
# What dtm says of topics, letter by letter, by the broker's code and the place it speaks of.
_OF_TOPICS = {
    ("conflict", "url"): "this url exists",
    ("not_found", "topic"): "no such a topic",
    ("not_found", "subscribers"): "this topic is empty",
    ("not_found", "url"): "no such an url ",
    ("not_found", "calls"): "topic not found",
}


class DtmRefusal(Exception):
    """A request that is not carried out. `result` is dtm's word for it, empty for errors that are neither."""

    status: ClassVar[int] = 500
    jsonrpc_code: ClassVar[int] = -32603
    result: ClassVar[str] = ""

    def __init__(self, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable


class DtmError(DtmRefusal):
    """Anything that went wrong: HTTP 500, JSON-RPC -32603, gRPC UNKNOWN."""


class DtmForbidden(DtmError):
    """Not for the one who asks, which dtm has no word for: HTTP 403, JSON-RPC -32603, gRPC PERMISSION_DENIED."""

    status = 403


class DtmFailure(DtmRefusal):
    """The state of things forbids it for good: HTTP 409, JSON-RPC -32901, gRPC ABORTED."""

    status = 409
    jsonrpc_code = -32901
    result = "FAILURE"


class DtmOngoing(DtmRefusal):
    """Not yet; ask again: HTTP 425, JSON-RPC -32902, gRPC FAILED_PRECONDITION."""

    status = 425
    jsonrpc_code = -32902
    result = "ONGOING"


def refusal_of(error: Exception) -> DtmRefusal:
    """Anything that a request may run into, as dtm's clients know it."""
    if isinstance(error, DtmRefusal):
        return error
    known = as_tallystick_error(error)
    kind = DtmForbidden if isinstance(known, Forbidden) else DtmError
    return kind(in_dtm_words(known), known.retryable)


def in_dtm_words(error: TallystickError) -> str:
    """The broker's own message, with the names that the request had for the places it speaks of."""
    text = _OF_TOPICS.get((error.code, error.field or ""), error.detail)
    for place, name in _PLACES:
        text = place.sub(name, text)
    return text


def wrong_type(trans_type: str | None) -> DtmError:
    """The other kinds of transaction undo what was done; a message broker has nothing to undo it with."""
    return DtmError(
        f"trans_type: {(trans_type or '')[:40]!r} is not supported, only 'msg' (two-phase messages) is; "
        "keep a dtm server for saga, tcc, xa and workflow, or make the later steps branches of a msg"
    )


def unknown_gid(gid: str) -> DtmError:
    return DtmError(f"no TransGlobal with gid: {gid} found")


def not_of_dtm(gid: str) -> DtmError:
    return DtmError(
        f"gid: belongs to a transaction that did not come through this API (got {gid}). Use the native API for it."
    )


def cannot_prepare(status: str) -> DtmFailure:
    return DtmFailure(f"current status '{status}', cannot prepare. FAILURE")


def cannot_submit(status: str) -> DtmFailure:
    # The spelling is dtm's: somebody may compare it.
    return DtmFailure(f"current status '{status}', cannot sumbmit. FAILURE")


def cannot_abort(status: str) -> DtmFailure:
    return DtmFailure(f"trans type: 'msg' current status '{status}', cannot abort. FAILURE")


def cannot_stop(status: str) -> DtmFailure:
    return DtmFailure(f"global transaction force stop error. status: {status}. error: FAILURE")
