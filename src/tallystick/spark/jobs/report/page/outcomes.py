"""Transactions: their outcomes and who told them, how long that took, and how often they were checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tallystick.spark.jobs.report.classes import TOOK_MS, classes
from tallystick.spark.jobs.report.facts import Facts, Row
from tallystick.spark.jobs.report.page.charts import Series, columns, legend, length, shares
from tallystick.spark.jobs.report.page.markup import Markup, tag
from tallystick.spark.jobs.report.page.tables import NUMBER, PLOT, table
from tallystick.spark.jobs.report.page.times import step_labels, step_marks, step_of
from tallystick.spark.jobs.report.page.words import count, many, share, short, took

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
NOTHING = "No transaction got its outcome in this range."


def outcome_section(facts: Facts) -> list[Markup | None]:
    if not facts.figures["outcomes"]:
        return [tag("p", NOTHING, class_="none")]
    return [tag("div", _over_time(facts), _by_teller(facts), class_="pair"), _by_group(facts)]


def _over_time(facts: Facts) -> Markup:
    title = "Outcomes, by time (UTC)"
    places = [(step_of(facts.span, row["step"]), row) for row in facts.figures["outcomes_over_time"]]
    series = _by_outcome(places, len(facts.span.steps))
    drawn = columns(title, step_labels(facts.span), series, short, step_marks(facts.span))
    return tag("figure", tag("figcaption", title), drawn, legend(series))


def _by_outcome(places: Iterable[tuple[int, Row]], number: int) -> list[Series]:
    values = {outcome: [0.0] * number for outcome in OUTCOMES}
    for place, row in places:
        values[row["outcome"]][place] += row["transactions"]
    return [Series(name, colour, values[outcome]) for outcome, (name, colour) in OUTCOMES.items()]


def _by_teller(facts: Facts) -> Markup:
    found: Counter[tuple[str, str]] = Counter()
    for row in facts.figures["outcomes"]:
        found[row["by"], row["outcome"]] += row["transactions"]
    whole = found.total()
    heads = [("who told it", ""), ("committed", NUMBER), ("rolled back", NUMBER), ("share", NUMBER)]
    rows = [
        [
            TELLERS.get(by, by),
            count(found[by, "committed"]),
            count(found[by, "rolled_back"]),
            share(found[by, "committed"] + found[by, "rolled_back"], whole),
        ]
        for by in _tellers(facts)
    ]
    return table("Who told the outcome", heads, rows)


def _tellers(facts: Facts) -> list[str]:
    """Those that occur, in the order of the words; any other after them."""
    found = {row["by"] for row in facts.figures["outcomes"]}
    return [*(by for by in TELLERS if by in found), *sorted(found - TELLERS.keys())]


def _by_group(facts: Facts) -> Markup:
    tellers = _tellers(facts)
    heads = [
        *(("group", ""), ("shares", PLOT), ("transactions", NUMBER)),
        *(("committed", NUMBER), ("rolled back", NUMBER)),
        *((by, NUMBER) for by in tellers),
    ]
    groups: dict[str, list[Row]] = {}
    for row in facts.figures["outcomes"]:
        groups.setdefault(row["group"], []).append(row)
    ranked = sorted(groups.items(), key=lambda item: (-_sum(item[1]), item[0]))
    rows = [_group_row(group, rows, tellers) for group, rows in ranked]
    return table("By producer group; the last columns count who told the outcome", heads, rows)


def _group_row(group: str, rows: Sequence[Row], tellers: Sequence[str]) -> list[str]:
    whole = _sum(rows)
    parts = {outcome: _sum(row for row in rows if row["outcome"] == outcome) for outcome in OUTCOMES}
    series = [Series(name, colour, [parts[outcome]]) for outcome, (name, colour) in OUTCOMES.items()]
    return [
        group or "(no group)",
        shares(group or "no group", series, count),
        count(whole),
        *(share(parts[outcome], whole) for outcome in OUTCOMES),
        *(count(_sum(row for row in rows if row["by"] == by)) for by in tellers),
    ]


def _sum(rows: Iterable[Row]) -> int:
    return sum(row["transactions"] for row in rows)


# --- how long it took ------------------------------------------------------------------------------------------


def time_section(facts: Facts) -> list[Markup | None]:
    if not facts.overall:
        return [tag("p", "No prepared transaction got its outcome in this range.", class_="none")]
    return [tag("div", _histogram(facts), _percentiles(facts), class_="pair")]


def _histogram(facts: Facts) -> Markup:
    title = "Transactions, by the time from prepare to outcome"
    rows = facts.figures["time_to_outcome_histogram"]
    edges = _all_between([(row["over_ms"], row["upto_ms"]) for row in rows])
    places = [(edges.index((row["over_ms"], row["upto_ms"])), row) for row in rows]
    series = _by_outcome(places, len(edges))
    drawn = columns(title, [_class(*pair) for pair in edges], series, short)
    return tag("figure", tag("figcaption", title), drawn, legend(series))


def _all_between(found: Sequence[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """The classes from the first to the last that occur. Empty ones between them stay: a gap is to be seen."""
    every = classes(TOOK_MS)
    places = [every.index(one) for one in found]
    return every[min(places) : max(places) + 1]


def _class(over: int, upto: int | None) -> str:
    return f"> {took(over)}" if upto is None else f"\N{LESS-THAN OR EQUAL TO} {took(upto)}"


def _percentiles(facts: Facts) -> Markup:
    heads = [("group", ""), ("p50", NUMBER), ("p95", NUMBER), ("p99", NUMBER), ("longest", NUMBER)]
    rows = [
        [
            "all" if row["group"] is None else row["group"],
            *(took(row[name]) for name in ("p50_ms", "p95_ms", "p99_ms", "most_ms")),
        ]
        for row in facts.figures["time_to_outcome"]
    ]
    return table("Half, 95 % and 99 % of the transactions took no longer than", heads, rows)


# --- how often they were checked ---------------------------------------------------------------------------------


def check_section(facts: Facts) -> list[Markup | None]:
    found: Counter[int] = Counter()
    for row in facts.figures["checks"]:
        found[min(row["checks"], MOST_CHECKS + 1)] += row["transactions"]
    if not found:
        return [tag("p", "No prepared transaction got its outcome in this range.", class_="none")]
    whole, most = found.total(), max(found.values())
    heads = [("checks", ""), ("", PLOT), ("transactions", NUMBER), ("share", NUMBER)]
    rows = [
        [
            str(checks) if checks <= MOST_CHECKS else f"more than {MOST_CHECKS}",
            length(many(found[checks], "transaction"), found[checks], most, "good" if checks == 0 else "bad2"),
            count(found[checks]),
            share(found[checks], whole),
        ]
        for checks in sorted(found)
    ]
    return [table("Prepared transactions, by how often they were checked before their outcome came", heads, rows)]
