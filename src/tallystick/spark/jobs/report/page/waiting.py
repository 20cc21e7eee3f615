"""What waits: transactions without an outcome, and messages that consumer groups have not handled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tallystick.spark.jobs.report.classes import AGE_MS, classes
from tallystick.spark.jobs.report.facts import Facts, Row
from tallystick.spark.jobs.report.page.charts import Series, columns, legend, length
from tallystick.spark.jobs.report.page.markup import Markup, tag
from tallystick.spark.jobs.report.page.tables import NUMBER, PLOT, TEXT, folded, table
from tallystick.spark.jobs.report.page.words import count, many, moment, short, took

STATES = {"prepared": "wait", "parked": "warnfill"}


def pending_section(facts: Facts) -> list[Markup | None]:
    if not facts.figures["pending"]:
        return [tag("p", "Every transaction has its outcome.", class_="none")]
    reasons = facts.figures["pending_reasons"]
    return [
        tag("div", _by_age(facts), _by_group(facts), class_="pair"),
        table(
            "What the last checks said, the most frequent first",
            [("state", ""), ("reason", TEXT), ("transactions", NUMBER)],
            [[row["state"], row["reason"], count(row["transactions"])] for row in reasons],
            "No check has failed so far." if _checked(facts) else "No check has been made so far.",
        ),
    ]


def _checked(facts: Facts) -> bool:
    return any(row["most_checks"] for row in facts.figures["pending"])


def _by_age(facts: Facts) -> Markup:
    title = "Transactions without an outcome, by age"
    edges = classes(AGE_MS)
    series = [Series(state, colour, _counts(facts, state, edges)) for state, colour in STATES.items()]
    labels = [f"> {took(over)}" if upto is None else f"\N{LESS-THAN OR EQUAL TO} {took(upto)}" for over, upto in edges]
    drawn = columns(title, labels, series, short, dict(enumerate(labels)))
    return tag("figure", tag("figcaption", title), drawn, legend(series))


def _counts(facts: Facts, state: str, edges: Sequence[tuple[int, int | None]]) -> list[float]:
    values = [0.0] * len(edges)
    for row in facts.figures["pending"]:
        if row["state"] == state:
            values[edges.index((row["over_ms"], row["upto_ms"]))] += row["transactions"]
    return values


def _by_group(facts: Facts) -> Markup:
    heads = [("group", ""), ("prepared", NUMBER), ("parked", NUMBER), ("checks", NUMBER), ("oldest", NUMBER)]
    ordered = sorted(facts.figures["pending"], key=_group)
    rows = [_pending_row(group, list(rows), facts.span.now_ms) for group, rows in groupby(ordered, _group)]
    return table("By producer group; checks is the most that one of them has had", heads, rows)


def _group(row: Row) -> str:
    return row["group"] or ""


def _pending_row(group: str, rows: Sequence[Row], now_ms: int) -> list[str]:
    return [
        group or "(no group)",
        *(count(sum(row["transactions"] for row in rows if row["state"] == state)) for state in STATES),
        count(max(row["most_checks"] for row in rows)),
        took(age_ms(min(row["oldest_at"] for row in rows), now_ms)),
    ]


def age_ms(time: Any, now_ms: int) -> float:
    return max(0.0, now_ms - moment(time).timestamp() * 1000)


def lag_section(facts: Facts) -> list[Markup | None]:
    rows = facts.figures["lag"]
    if not rows:
        return [tag("p", "There is no consumer group.", class_="none")]
    together = [(group, topic, list(queues)) for (group, topic), queues in groupby(rows, _place)]
    together.sort(key=lambda one: (-_sum(one[2], "lag"), one[0], one[1]))
    most = max(_sum(queues, "lag") for _, _, queues in together)
    heads = [("group", ""), ("topic", ""), ("", PLOT), ("lag", NUMBER), ("leased", NUMBER), ("queues behind", NUMBER)]
    shown = [_lag_row(group, topic, queues, most) for group, topic, queues in together]
    return [
        table("Messages that a group has not settled yet, by topic, at the time of the report", heads, shown),
        folded("Every queue", _by_queue(rows)),
    ]


def _place(row: Row) -> tuple[str, str]:
    return row["group"], row["topic"]


def _lag_row(group: str, topic: str, queues: Sequence[Row], most: int) -> list[str]:
    lag = _sum(queues, "lag")
    behind = sum(queue["lag"] > 0 for queue in queues)
    return [
        group,
        topic,
        length(f"{group} on {topic}: {many(lag, 'message')} behind", lag, most, "c0"),
        count(lag),
        count(_sum(queues, "leased")),
        f"{behind} of {len(queues)}",
    ]


def _by_queue(rows: Sequence[Row]) -> Markup:
    names = ("queue", "offset", "start", "end", "lag", "leased")
    heads = [("group", ""), ("topic", ""), *((name, NUMBER) for name in names)]
    return table(
        "Lag by queue", heads, [[row["group"], row["topic"], *(count(row[name]) for name in names)] for row in rows]
    )


def _sum(rows: Sequence[Row], column: str) -> int:
    return sum(row[column] for row in rows)
