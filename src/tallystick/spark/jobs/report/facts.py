"""What a report is drawn from: the figures as rows, and where and when they were taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tallystick.spark.jobs.report.settings import Span

Row = Mapping[str, Any]


class Place(NamedTuple):
    """The broker, how long it keeps outcomes and the messages of each topic (0: for ever), and whether a group of it
    has ever given a message up."""

    url: str
    store: str
    version: str
    outcomes_kept_ms: int
    messages_kept_ms: Mapping[str, int]
    has_letters: bool


class Facts(NamedTuple):
    """`figures` has the rows of every figure under its name."""

    place: Place
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
