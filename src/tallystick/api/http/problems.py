"""Errors as application/problem+json: what was wrong, where, and a word for programs."""

from __future__ import annotations

import logging
import re

import msgspec
from starlette.responses import Response

from tallystick.core.errors import InvalidRequest, TallystickError
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


def problem_of(error: TallystickError) -> Problem:
    title = (type(error).__doc__ or "").strip().splitlines()[0]
    return Problem(title, error.status, error.detail, error.code, field=error.field)


def headers_of(error: TallystickError) -> dict[str, str]:
    return {"Retry-After": RETRY_AFTER_SECONDS} if error.retryable else {}


def problem_response(error: Exception) -> Response:
    known = as_tallystick_error(error)
    body = msgspec.json.encode(problem_of(known))
    return Response(body, known.status, headers_of(known), PROBLEM)
