"""Times as users give them, in seconds, and as brokers take them: whole milliseconds."""

from __future__ import annotations

from tallystick.core.errors import InvalidRequest
from tallystick.core.message import LATEST_MS


def milliseconds(seconds: float, field: str) -> int:
    """InvalidRequest, which names the field, for anything that is no time: not a number, negative, without end."""
    try:
        found = round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        found = -1
    if not 0 <= found <= LATEST_MS:
        raise InvalidRequest(
            f"{field}: {_shown(seconds)} is not a time in seconds; it must be a number, not negative, and no later "
            f"than the year 9999{_advice(seconds)}",
            field=field,
        )
    return found


def _advice(given: object) -> str:
    for method in ("total_seconds", "timestamp"):  # of a timedelta, of a datetime
        if hasattr(given, method):
            return f" (give its {method}())"
    return " (are these milliseconds?)" if isinstance(given, int | float) else ""


def _shown(given: object) -> str:
    return repr(given[:40]) if isinstance(given, str) else str(given)[:40]


def milliseconds_or_none(seconds: float | None, field: str) -> int | None:
    return None if seconds is None else milliseconds(seconds, field)
