"""Errors as application/problem+json: what was wrong, where, and a word for programs."""

from __future__ import annotations

import logging
import re
from http import HTTPStatus

import msgspec

from tallystick.core.errors import InvalidRequest, TallystickError, Unauthenticated
from tallystick.core.wire import PROBLEM, Problem

log = logging.getLogger("tallystick.api")

RETRY_AFTER_SECONDS = "1"
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`\Z")
DECODING = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # a ValidationError is a DecodeError


def undecodable(error: Exception) -> InvalidRequest:
    """A body that does not have the form of what was expected: says where, if the decoder knows."""
    if isinstance(error, msgspec.ValidationError):
        found = _PLACE.search(str(error))
        message, field = (str(error)[: found.start()], found[1] or None) if found else (str(error), None)
        return InvalidRequest(f"{field or 'the request'}: {message}", field=field)
    return InvalidRequest(f"the body cannot be decoded: {error}")


def as_tallystick_error(error: Exception) -> TallystickError:
    """Anything that a request may run into, as one family."""
    if isinstance(error, TallystickError):
        return error
    log.exception("internal error", exc_info=error)
    return TallystickError("internal error; the broker's log has the details")


def problem_of(error: Exception) -> tuple[int, bytes, dict[str, str]]:
    """The status, the body and the headers of the answer to a request that ran into this."""
    known = as_tallystick_error(error)
    body = msgspec.json.encode(Problem(known.title, known.status, known.detail, known.code, field=known.field))
    return known.status, body, refusal_headers(known)


def refusal_headers(error: TallystickError) -> dict[str, str]:
    """What an answer that refuses says in its headers: how to do better next time."""
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthenticated) else {}
    return {**headers, "Retry-After": RETRY_AFTER_SECONDS} if error.retryable else headers


def last_words(why: TallystickError) -> bytes:
    """A whole answer over HTTP/1.1, after which the connection ends."""
    status, problem, headers = problem_of(why)
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {PROBLEM}",
        f"content-length: {len(problem)}",
        *(f"{name.lower()}: {value}" for name, value in headers.items()),
        "connection: close",
    ]
    return "\r\n".join((*lines, "", "")).encode() + problem
