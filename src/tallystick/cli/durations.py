"""Durations on the command line: read as people write them, shown the same way."""

from __future__ import annotations

from tallystick.core.durations import milliseconds
from tallystick.core.errors import InvalidRequest

_UNITS = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)]


def parsed(text: str, option: str) -> int:
    """The duration given to an option, in milliseconds."""
    try:
        return milliseconds(text)
    except ValueError as error:
        raise InvalidRequest(f"{option}: {error}", field=option) from error


def duration(milliseconds: int) -> str:
    """In the largest unit that fits: 7d, 90s, 250ms."""
    for unit, size in _UNITS:
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
