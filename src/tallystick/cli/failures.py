"""Errors as people and shells need them: one line that says what to do, and an exit code that tells the kind."""

from __future__ import annotations

import sys

from tallystick.core.errors import (
    BrokerUnavailable,
    ConfigError,
    Conflict,
    InvalidRequest,
    NotFound,
    OffsetOutOfRange,
    TallystickError,
    TooLarge,
)

FAILED, USAGE, NOT_FOUND, UNREACHABLE, CONFLICT = 1, 2, 3, 4, 5
DAMAGED, UNFINISHED = 6, 7  # what `spark reconcile` has found, which is no failure of the command

_CODES: list[tuple[type[TallystickError], int]] = [
    (ConfigError, USAGE),
    (InvalidRequest, USAGE),
    (TooLarge, USAGE),
    (NotFound, NOT_FOUND),
    (OffsetOutOfRange, NOT_FOUND),
    (BrokerUnavailable, UNREACHABLE),
    (Conflict, CONFLICT),
]


def exit_code(error: TallystickError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def report(error: TallystickError) -> int:
    """Print the error on stderr as one line; returns the exit code."""
    line = " ".join(error.detail.split())
    sys.stderr.write(f"tallystick: {line}\n")
    return exit_code(error)
