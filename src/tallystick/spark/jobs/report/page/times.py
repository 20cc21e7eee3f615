"""The time axis: which steps there are, and what stands below them."""

from __future__ import annotations

from datetime import datetime

from tallystick.spark.jobs.report.page.words import at, moment
from tallystick.spark.jobs.report.settings import DAY_MS, Span

MOST_MARKS = 7
_MINUTE, _HOUR = 60_000, 3_600_000
_MARK_STEPS = [
    *(1_000, 2_000, 5_000, 10_000, 15_000, 30_000, _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE),
    *(30 * _MINUTE, _HOUR, 2 * _HOUR, 3 * _HOUR, 4 * _HOUR, 6 * _HOUR, 12 * _HOUR, DAY_MS, 2 * DAY_MS, 7 * DAY_MS),
    *(14 * DAY_MS, 28 * DAY_MS, 91 * DAY_MS, 364 * DAY_MS),
]


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
