"""Traffic: messages and bytes, over time and by topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from tallystick.spark.jobs.report.facts import Facts
from tallystick.spark.jobs.report.page.charts import BINARY, Plot, Series, Sparkline, line, plot
from tallystick.spark.jobs.report.page.words import short, size, step_labels, step_marks, step_of

COLOURS = 7
OTHERS = "other topics"


class TopicVolume(NamedTuple):
    name: str
    messages: int
    bytes: int
    course: Sparkline


class StepVolume(NamedTuple):
    begin_ms: int
    messages: int
    bytes: int


class Volume(NamedTuple):
    plots: list[Plot]
    topics: list[TopicVolume]  # the largest first
    steps: list[StepVolume]


def volume(facts: Facts) -> Volume:
    plots = [
        _over_time(facts, "Messages", "messages", short),
        _over_time(facts, "Bytes of message values", "bytes", size, BINARY),
    ]
    return Volume(plots, _topics(facts), _steps(facts))


def _over_time(facts: Facts, title: str, column: str, say: Callable[[float], str], base: float = 10.0) -> Plot:
    named, series = f"{title}, by time (UTC)", _series(facts, column)
    return plot(named, step_labels(facts.span), series, say, step_marks(facts.span), base)


def _series(facts: Facts, column: str) -> list[Series]:
    """The topics with the most messages, each in its colour in both plots; the rest together."""
    shown = list(_topic_totals(facts))[:COLOURS]
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(facts.span.steps))
    for row in facts.figures["volume"]:
        name = row["topic"] if row["topic"] in shown else OTHERS
        found[name][step_of(facts.span, row["step"])] += row[column]
    series = [Series(name, _colour(place), found[name]) for place, name in enumerate(shown)]
    return [*series, Series(OTHERS, "other", found[OTHERS])] if OTHERS in found else series


def _colour(place: int) -> str:
    return f"c{place}" if place < COLOURS else "other"


def _topic_totals(facts: Facts) -> dict[str, tuple[int, int]]:
    """(messages, bytes) of every topic, the largest first."""
    totals: dict[str, tuple[int, int]] = {}
    for row in facts.figures["volume"]:
        messages, taken = totals.get(row["topic"], (0, 0))
        totals[row["topic"]] = (messages + row["messages"], taken + row["bytes"])
    return dict(sorted(totals.items(), key=lambda item: (-item[1][0], item[0])))


def _topics(facts: Facts) -> list[TopicVolume]:
    courses: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(facts.span.steps))
    for row in facts.figures["volume"]:
        courses[row["topic"]][step_of(facts.span, row["step"])] += row["messages"]
    return [
        TopicVolume(name, messages, taken, line(f"Messages of {name} by time", courses[name], _colour(place)))
        for place, (name, (messages, taken)) in enumerate(_topic_totals(facts).items())
    ]


def _steps(facts: Facts) -> list[StepVolume]:
    sums = [StepVolume(begin, 0, 0) for begin in facts.span.steps]
    for row in facts.figures["volume"]:
        place = step_of(facts.span, row["step"])
        begin, messages, taken = sums[place]
        sums[place] = StepVolume(begin, messages + row["messages"], taken + row["bytes"])
    return sums
