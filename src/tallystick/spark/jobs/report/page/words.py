"""Numbers and times as people read them, and the words of a time axis.

All times are UTC: a report is read by people in several places.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tallystick.core.durations import DAY_MS
from tallystick.spark.jobs.report.settings import Span

DASH = "\N{EN DASH}"
MOST_MARKS = 7
_MINUTE, _HOUR = 60_000, 3_600_000
_TIMES = [(DAY_MS, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1_000, "s")]
_MARK_STEPS = [
    *(1_000, 2_000, 5_000, 10_000, 15_000, 30_000, _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE),
    *(30 * _MINUTE, _HOUR, 2 * _HOUR, 3 * _HOUR, 4 * _HOUR, 6 * _HOUR, 12 * _HOUR, DAY_MS, 2 * DAY_MS, 7 * DAY_MS),
    *(14 * DAY_MS, 28 * DAY_MS, 91 * DAY_MS, 364 * DAY_MS),
]


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


def age_ms(time: int | datetime, now_ms: int) -> float:
    return max(0.0, now_ms - moment(time).timestamp() * 1000)


def duration_class(over: int, upto: int | None) -> str:
    """The name of a class of durations; the last has no upper edge."""
    return f"> {took(over)}" if upto is None else f"\N{LESS-THAN OR EQUAL TO} {took(upto)}"


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


def coordinate(value: float) -> str:
    """A number of a drawing. Three places are finer than any screen."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


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


# --- a time axis -----------------------------------------------------------------------------------------------


def step_of(span: Span, time: datetime) -> int:
    """The number of the step that begins at a time."""
    return (round(moment(time).timestamp() * 1000) - span.first_ms) // span.step_ms


def step_labels(span: Span) -> list[str]:
    """The name of every step: as much of its beginning as tells it from the others."""
    one_day = at(span.steps[0], "%F") == at(span.steps[-1], "%F")
    if span.step_ms >= DAY_MS:
        form = "%b %d"
    elif span.step_ms >= _MINUTE:
        form = "%H:%M" if one_day else "%b %d %H:%M"
    else:
        form = "%H:%M:%S"
    return [at(step, form) for step in span.steps]


def step_marks(span: Span) -> dict[int, str]:
    """What stands below a plot: a few round times, with the day where one begins."""
    length = span.steps[-1] - span.steps[0] + span.step_ms
    every = next((size for size in _MARK_STEPS if length / size <= MOST_MARKS), length)
    places = [place for place, step in enumerate(span.steps) if step % every < span.step_ms] or [0]
    return {place: _mark(span.steps[place], every) for place in places}


def _mark(step: int, every: int) -> str:
    if step % DAY_MS == 0 or every >= DAY_MS:
        return at(step, "%b %d")
    return at(step, "%H:%M" if every >= _MINUTE else "%H:%M:%S")
