"""What waits: transactions without an outcome, and messages that consumer groups have not handled.

And what of all that is worth a look, and what the report could not see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from tallystick.spark.jobs.report.facts import AGE_MS, Facts, Row, classes
from tallystick.spark.jobs.report.page.charts import Bar, Plot, Series, length, plot
from tallystick.spark.jobs.report.page.words import age_ms, duration_class, many, short

STATES = {"prepared": "wait", "parked": "warnfill"}
OLD_MS = 300_000  # the begin of a class of ages
FAR_BEHIND = 1_000


class PendingGroup(NamedTuple):
    name: str
    prepared: int
    parked: int
    most_checks: int
    oldest_ms: float


class Pending(NamedTuple):
    plot: Plot
    groups: list[PendingGroup]

    @property
    def most_checks(self) -> int:
        return max((group.most_checks for group in self.groups), default=0)


def pending(facts: Facts) -> Pending:
    ordered = sorted(facts.figures["pending"], key=_group)
    groups = [_pending_group(name, list(rows), facts.span.now_ms) for name, rows in groupby(ordered, _group)]
    return Pending(_by_age(facts), groups)


def _group(row: Row) -> str:
    return row["group"] or ""


def _pending_group(name: str, rows: Sequence[Row], now_ms: int) -> PendingGroup:
    prepared, parked = (sum(row["transactions"] for row in rows if row["state"] == state) for state in STATES)
    oldest = min(row["oldest_at"] for row in rows)
    return PendingGroup(name, prepared, parked, max(row["most_checks"] for row in rows), age_ms(oldest, now_ms))


def _by_age(facts: Facts) -> Plot:
    edges = classes(AGE_MS)
    series = [Series(state, colour, _counts(facts, state, edges)) for state, colour in STATES.items()]
    labels = [duration_class(*pair) for pair in edges]
    return plot("Transactions without an outcome, by age", labels, series, short, dict(enumerate(labels)))


def _counts(facts: Facts, state: str, edges: Sequence[tuple[int, int | None]]) -> list[float]:
    values = [0.0] * len(edges)
    for row in facts.figures["pending"]:
        if row["state"] == state:
            values[edges.index((row["over_ms"], row["upto_ms"]))] += row["transactions"]
    return values


# --- consumer groups -------------------------------------------------------------------------------------------


class GroupLag(NamedTuple):
    """How far a group is behind on a topic."""

    group: str
    topic: str
    bar: Bar
    lag: int
    leased: int
    behind: int
    queues: int


def lags(facts: Facts) -> list[GroupLag]:
    """The furthest behind first."""
    together = [(group, topic, list(queues)) for (group, topic), queues in groupby(facts.figures["lag"], _topic)]
    together.sort(key=lambda one: (-_sum(one[2], "lag"), one[0], one[1]))
    most = max((_sum(queues, "lag") for _, _, queues in together), default=0)
    return [_group_lag(group, topic, queues, most) for group, topic, queues in together]


def _topic(row: Row) -> tuple[str, str]:
    return row["group"], row["topic"]


def _group_lag(group: str, topic: str, queues: Sequence[Row], most: int) -> GroupLag:
    lag, behind = _sum(queues, "lag"), sum(queue["lag"] > 0 for queue in queues)
    bar = length(f"{group} on {topic}: {many(lag, 'message')} behind", lag, most, "c0")
    return GroupLag(group, topic, bar, lag, _sum(queues, "leased"), behind, len(queues))


def _sum(rows: Sequence[Row], column: str) -> int:
    return sum(row[column] for row in rows)


# --- what is worth a look ---------------------------------------------------------------------------------------


class Advice(NamedTuple):
    """`far_behind` are lags by group and topic. `forgets`: the range begins before the outcomes that the broker keeps.
    `missing`: by topic, how many messages of the range may have been trimmed. `hidden`: what the token may not read."""

    parked: int
    old: int
    oldest_ms: float
    exhausted: int
    letters: int
    far_behind: dict[tuple[str, str], int]
    forgets: bool
    missing: dict[str, int]
    hidden: str

    @property
    def given(self) -> bool:
        return any(self)


def advice(facts: Facts) -> Advice:
    old = [row for row in facts.figures["pending"] if row["state"] == "prepared" and row["over_ms"] >= OLD_MS]
    return Advice(
        parked=facts.total("pending", "transactions", state="parked"),
        old=sum(row["transactions"] for row in old),
        oldest_ms=age_ms(min(row["oldest_at"] for row in old), facts.span.now_ms) if old else 0.0,
        exhausted=facts.total("outcomes", "transactions", by="exhausted"),
        letters=facts.total("dead_letters", "letters"),
        far_behind=_far_behind(facts),
        forgets=facts.span.now_ms - facts.span.since_ms > facts.broker.outcomes_kept_ms,
        missing=_missing(facts),
        hidden=facts.broker.hidden,
    )


def _missing(facts: Facts) -> dict[str, int]:
    counts = Counter[str]()
    for row in facts.figures["missing"]:
        counts[row["topic"]] += row["messages"]
    return dict(counts.most_common())


def _far_behind(facts: Facts) -> dict[tuple[str, str], int]:
    lags: dict[tuple[str, str], int] = {}
    for row in facts.figures["lag"]:
        lags[row["group"], row["topic"]] = lags.get((row["group"], row["topic"]), 0) + row["lag"]
    return {place: lag for place, lag in lags.items() if lag > FAR_BEHIND}
