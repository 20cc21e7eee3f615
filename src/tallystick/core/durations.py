"""Durations as people write them: 250ms, 10s, 5m, 12h, 7d, or a number of seconds."""

from __future__ import annotations

import re
from decimal import Decimal

DAY_MS = 86_400_000
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": DAY_MS}
_FORM = re.compile(r"^\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ms|s|m|h|d)?\s*\Z")
_LONGEST_DAYS = 36_500  # with more, a time to come might not fit where the store keeps times


def milliseconds(text: str | int | float) -> int:
    """The duration in milliseconds; ValueError if it is none."""
    found = _FORM.match(str(text))
    if found is None:
        raise ValueError(f"{str(text)[:40]!r} is not a duration; write 250ms, 10s, 5m, 12h, 7d or a number of seconds")
    # Decimal: 2.3h are 8,280,000 ms, not one less.
    exact = Decimal(found[1]) * _UNITS[found[2] or "s"]
    if exact > _LONGEST_DAYS * _UNITS["d"]:
        raise ValueError(f"{text!r} is longer than {_LONGEST_DAYS}d")
    return int(exact.to_integral_value())
