"""Durations as people write them: 250ms, 10s, 5m, 12h, 7d, or a number of seconds."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FORM = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?\s*\Z")


def milliseconds(text: str | int | float) -> int:
    """The duration in milliseconds; ValueError if it is none."""
    found = _FORM.match(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a duration; write 250ms, 10s, 5m, 12h, 7d or a number of seconds")
    # Decimal: 2.3h is exactly 8,280,000 ms, and a number with many digits overflows nothing.
    return int((Decimal(found[1]) * _UNITS[found[2] or "s"]).to_integral_value())
