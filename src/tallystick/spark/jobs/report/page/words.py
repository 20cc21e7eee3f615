"""Numbers and times as people read them. All times are UTC: a report is read by people in several places."""

from __future__ import annotations

from datetime import UTC, datetime

DASH = "\N{EN DASH}"
_TIMES = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")]


def count(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def many(number: int, thing: str, things: str = "") -> str:
    """1 group, 2 groups."""
    return f"{count(number)} {thing if number == 1 else things or thing + 's'}"


def short(value: float) -> str:
    """1,234 as it is; more in thousands, millions, thousand millions: for an axis or a tile."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{_three(value / (1e3 if unit == ' k' else size))}{unit}"
    return f"{value:,.0f}"


def size(value: float | None) -> str:
    if value is None:
        return DASH
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{_three(value)} {unit}"
        value /= 1024
    return f"{_three(value)} TiB"


def took(milliseconds: float | None) -> str:
    """A duration: 12 ms, 1.5 s, 3 h."""
    if milliseconds is None:
        return DASH
    for length, unit in _TIMES:
        if milliseconds >= length:
            return f"{_three(milliseconds / length)} {unit}"
    return f"{_three(milliseconds)} ms"


def share(part: float, whole: float) -> str:
    """Never 100 % or 0 % where it is only nearly so."""
    if not whole:
        return DASH
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{_three(percent)} %"


def at(milliseconds: int | datetime | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    if milliseconds is None:
        return DASH
    return moment(milliseconds).strftime(form)


def moment(time: int | datetime) -> datetime:
    return time.astimezone(UTC) if isinstance(time, datetime) else datetime.fromtimestamp(time / 1000, UTC)


def _three(value: float) -> str:
    """Three digits that count, or all digits before the point if there are more."""
    if value >= 99.95 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}".rstrip("0")
