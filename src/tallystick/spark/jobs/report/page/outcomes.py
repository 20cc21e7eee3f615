"""Transactions: their outcomes and who told them, how long that took, and how often they were checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tallystick.spark.jobs.report.facts import TOOK_MS, Facts, Row, classes
from tallystick.spark.jobs.report.page.charts import Bar, Plot, Series, length, plot, shares
from tallystick.spark.jobs.report.page.words import count, duration_class, many, short, step_labels, step_marks, step_of

OUTCOMES = {"committed": ("committed", "good"), "rolled_back": ("rolled back", "bad")}
TELLERS = {
    "producer": "the producer",
    "check": "a check-back",
    "operator": "an operator",
    "sender": "sent as committed",
    "ledger": "a batch from Spark",
    "exhausted": "nobody: checks used up",
}
MOST_CHECKS = 10


class OutcomeCounts(NamedTuple):
    """Transactions that have something in common: who told their outcome, or their group."""

    name: str
    committed: int
    rolled_back: int

    @property
    def whole(self) -> int:
        return self.committed + self.rolled_back


class GroupOutcomes(NamedTuple):
    outcomes: OutcomeCounts
    bar: Bar
    told: list[int]  # by teller


class Outcomes(NamedTuple):
    plot: Plot
    whole: int
    tellers: list[str]
    by_teller: list[OutcomeCounts]
    by_group: list[GroupOutcomes]  # the largest first


def outcomes(facts: Facts) -> Outcomes:
    rows, tellers = facts.figures["outcomes"], _tellers(facts)
    by_teller = [_counts(TELLERS.get(by, by), [row for row in rows if row["by"] == by]) for by in tellers]
    return Outcomes(_over_time(facts), sum(one.whole for one in by_teller), tellers, by_teller, _groups(facts, tellers))


def _counts(name: str, rows: Sequence[Row]) -> OutcomeCounts:
    return OutcomeCounts(name, *(_sum(row for row in rows if row["outcome"] == outcome) for outcome in OUTCOMES))


def _sum(rows: Iterable[Row]) -> int:
    return sum(row["transactions"] for row in rows)


def _over_time(facts: Facts) -> Plot:
    places = [(step_of(facts.span, row["step"]), row) for row in facts.figures["outcomes_over_time"]]
    series = _by_outcome(places, len(facts.span.steps))
    return plot("Outcomes, by time (UTC)", step_labels(facts.span), series, short, step_marks(facts.span))


def _by_outcome(places: Iterable[tuple[int, Row]], number: int) -> list[Series]:
    values = {outcome: [0.0] * number for outcome in OUTCOMES}
    for place, row in places:
        values[row["outcome"]][place] += row["transactions"]
    return [Series(name, colour, values[outcome]) for outcome, (name, colour) in OUTCOMES.items()]


def _tellers(facts: Facts) -> list[str]:
    """Those that occur, in the order of the words; any other after them."""
    found = {row["by"] for row in facts.figures["outcomes"]}
    return [*(by for by in TELLERS if by in found), *sorted(found - TELLERS.keys())]


def _groups(facts: Facts, tellers: Sequence[str]) -> list[GroupOutcomes]:
    groups: dict[str, list[Row]] = {}
    for row in facts.figures["outcomes"]:
        groups.setdefault(row["group"], []).append(row)
    ranked = sorted(groups.items(), key=lambda item: (-_sum(item[1]), item[0]))
    return [_group(name, rows, tellers) for name, rows in ranked]


def _group(name: str, rows: Sequence[Row], tellers: Sequence[str]) -> GroupOutcomes:
    counts = _counts(name, rows)
    parts = zip(OUTCOMES.values(), (counts.committed, counts.rolled_back), strict=True)
    series = [Series(outcome, colour, [part]) for (outcome, colour), part in parts]
    told = [_sum(row for row in rows if row["by"] == by) for by in tellers]
    return GroupOutcomes(counts, shares(name or "no group", series, count), told)


# --- how long it took ------------------------------------------------------------------------------------------


def histogram(facts: Facts) -> Plot:
    rows = facts.figures["time_to_outcome_histogram"]
    edges = _all_between([(row["over_ms"], row["upto_ms"]) for row in rows])
    places = [(edges.index((row["over_ms"], row["upto_ms"])), row) for row in rows]
    labels = [duration_class(*pair) for pair in edges]
    return plot("Transactions, by the time from prepare to outcome", labels, _by_outcome(places, len(edges)), short)


def _all_between(found: Sequence[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """The classes from the first to the last that occur. Empty ones between them stay: a gap is to be seen."""
    every = classes(TOOK_MS)
    places = [every.index(one) for one in found]
    return every[min(places) : max(places) + 1]


# --- how often they were checked ---------------------------------------------------------------------------------


class Checked(NamedTuple):
    """Transactions that were checked so often before their outcome came."""

    checks: str
    bar: Bar
    transactions: int


def checked(facts: Facts) -> list[Checked]:
    found: Counter[int] = Counter()
    for row in facts.figures["checks"]:
        found[min(row["checks"], MOST_CHECKS + 1)] += row["transactions"]
    most = max(found.values(), default=0)
    return [
        Checked(
            str(checks) if checks <= MOST_CHECKS else f"more than {MOST_CHECKS}",
            length(many(found[checks], "transaction"), found[checks], most, "good" if checks == 0 else "bad2"),
            found[checks],
        )
        for checks in sorted(found)
    ]
