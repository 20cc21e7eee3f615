"""What a report is drawn from: the figures as rows, and where and when they were taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tallystick.spark.jobs.report.settings import Span

Row = Mapping[str, Any]

# The classes that durations are counted in: from prepare to outcome, and since prepare.
TOOK_MS = [
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000),
    *(60_000, 300_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000),
]
AGE_MS = [10_000, 60_000, 300_000, 3_600_000, 21_600_000, 86_400_000]


def classes(edges: Sequence[int]) -> list[tuple[int, int | None]]:
    """Every class as (more than, at most); the last has no upper edge."""
    return [*pairwise([0, *edges]), (edges[-1], None)]


class ReportedBroker(NamedTuple):
    """The broker, how long it keeps outcomes, the topics whose messages are counted, and whether a consumer group has
    ever given a message up. `hidden`: what the token may not read; empty if it may read all."""

    url: str
    store: str
    version: str
    outcomes_kept_ms: int
    topics: tuple[str, ...]
    has_letters: bool
    hidden: str = ""


class Facts(NamedTuple):
    """`figures` has the rows of every figure under its name."""

    broker: ReportedBroker
    span: Span
    figures: Mapping[str, Sequence[Row]]

    def total(self, figure: str, column: str, **wanted: str) -> int:
        """The sum of a column, over the rows that have the wanted values."""
        rows = (row for row in self.figures[figure] if all(row[name] == value for name, value in wanted.items()))
        return sum(row[column] or 0 for row in rows)

    @property
    def overall(self) -> Row:
        """Time to outcome over all groups; no row at all if nothing was resolved."""
        return next((row for row in self.figures["time_to_outcome"] if row["group"] is None), {})
