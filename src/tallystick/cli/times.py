"""Times and durations on the command line: read as people write them, shown the same way."""

from __future__ import annotations

from datetime import UTC, datetime

from tallystick.core.durations import milliseconds
from tallystick.core.errors import InvalidRequest

DATE = "a time such as 2026-11-15T08:30 (UTC, unless it has a zone)"
WHEN = f"{DATE}, or how long ago: 90m, 24h, 7d"
_UNITS = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)]


def date(text: str, option: str, wanted: str = DATE) -> int:
    """A time that was given to an option, in milliseconds since 1970."""
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{option}: {text!r} is not {wanted}", field=option) from None
    return round((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * 1000)


def moment(text: str, option: str, now_ms: int) -> int:
    """The same, or a duration before `now_ms`."""
    try:
        return now_ms - milliseconds(text)
    except ValueError:
        return date(text, option, WHEN)


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
