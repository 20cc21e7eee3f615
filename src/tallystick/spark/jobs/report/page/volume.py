"""Traffic: messages and bytes by topic, and the messages that consumer groups gave up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from tallystick.spark.jobs.report.facts import Facts
from tallystick.spark.jobs.report.page.charts import BINARY, Series, columns, legend, length, line
from tallystick.spark.jobs.report.page.markup import Markup, tag
from tallystick.spark.jobs.report.page.tables import NUMBER, PLOT, TEXT, folded, table
from tallystick.spark.jobs.report.page.times import step_labels, step_marks, step_of
from tallystick.spark.jobs.report.page.words import at, count, many, share, short, size

COLOURS = 7
OTHERS = "other topics"


def volume_section(facts: Facts) -> list[Markup | None]:
    rows = facts.figures["volume"]
    if not rows:
        return [tag("p", "No message was stored in this range.", class_="none")]
    return [
        _over_time(facts, "Messages", "messages", short),
        _over_time(facts, "Bytes of message values", "bytes", size, BINARY),
        _by_topic(facts),
        folded("Messages and bytes by time", _by_time(facts)),
    ]


def _over_time(facts: Facts, title: str, column: str, say: Callable[[float], str], base: float = 10.0) -> Markup:
    named = f"{title}, by time (UTC)"
    series = _series(facts, column)
    drawn = columns(named, step_labels(facts.span), series, say, step_marks(facts.span), base)
    return tag("figure", tag("figcaption", named), drawn, legend(series))


def _series(facts: Facts, column: str) -> list[Series]:
    """The topics with the most messages, each in its colour in both plots; the rest together."""
    shown = list(_topic_totals(facts))[:COLOURS]
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(facts.span.steps))
    for row in facts.figures["volume"]:
        name = row["topic"] if row["topic"] in shown else OTHERS
        found[name][step_of(facts.span, row["step"])] += row[column]
    series = [Series(name, f"c{place}", found[name]) for place, name in enumerate(shown)]
    return [*series, Series(OTHERS, "other", found[OTHERS])] if OTHERS in found else series


def _topic_totals(facts: Facts) -> dict[str, tuple[int, int]]:
    """(messages, bytes) of every topic, the largest first."""
    totals: dict[str, tuple[int, int]] = {}
    for row in facts.figures["volume"]:
        messages, taken = totals.get(row["topic"], (0, 0))
        totals[row["topic"]] = (messages + row["messages"], taken + row["bytes"])
    return dict(sorted(totals.items(), key=lambda item: (-item[1][0], item[0])))


def _by_topic(facts: Facts) -> Markup:
    totals, courses = _topic_totals(facts), _courses(facts)
    whole = sum(messages for messages, _ in totals.values())
    heads = [
        *(("topic", ""), ("course", PLOT), ("messages", NUMBER), ("share", NUMBER)),
        *(("bytes", NUMBER), ("mean", NUMBER)),
    ]
    rows = [
        [
            name,
            line(f"Messages of {name} by time", courses[name], f"c{place}" if place < COLOURS else "other"),
            count(messages),
            share(messages, whole),
            size(taken),
            size(taken / messages),
        ]
        for place, (name, (messages, taken)) in enumerate(totals.items())
    ]
    return table("By topic; mean is the size of a message", heads, rows)


def _courses(facts: Facts) -> dict[str, list[float]]:
    """Messages of every topic, step by step."""
    courses: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(facts.span.steps))
    for row in facts.figures["volume"]:
        courses[row["topic"]][step_of(facts.span, row["step"])] += row["messages"]
    return courses


def _by_time(facts: Facts) -> Markup:
    sums = {step: [0, 0] for step in facts.span.steps}
    for row in facts.figures["volume"]:
        step = facts.span.steps[step_of(facts.span, row["step"])]
        sums[step] = [sums[step][0] + row["messages"], sums[step][1] + row["bytes"]]
    heads = [("from (UTC)", ""), ("messages", NUMBER), ("bytes", NUMBER)]
    rows: list[Sequence[str]] = [[at(step), count(messages), size(taken)] for step, (messages, taken) in sums.items()]
    return table("All topics", heads, rows)


def dead_letter_section(facts: Facts) -> list[Markup | None]:
    letters = facts.figures["dead_letters"]
    if not letters:
        return [tag("p", "No group gave a message up in this range.", class_="none")]
    most = max(row["letters"] for row in letters)
    heads = [("group", ""), ("topic", ""), ("", PLOT), ("letters", NUMBER), ("attempts", NUMBER), ("most", NUMBER)]
    rows = [
        [
            row["group"],
            row["topic"] or "?",
            length(many(row["letters"], "letter"), row["letters"], most, "bad"),
            count(row["letters"]),
            count(row["attempts"]),
            count(row["most_attempts"]),
        ]
        for row in letters
    ]
    reasons = facts.figures["dead_letter_reasons"]
    return [
        table(
            "Messages that went to dlq.<group>; attempts is how often they were tried before, in all and at most",
            heads,
            rows,
        ),
        table(
            "Reasons, the most frequent first",
            [("group", ""), ("reason", TEXT), ("letters", NUMBER)],
            [[row["group"], row["reason"] or "?", count(row["letters"])] for row in reasons],
        ),
    ]
