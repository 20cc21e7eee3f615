"""A made history, and facts to draw a page from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tallystick.spark.jobs.report.facts import Facts, ReportedBroker, Row
from tallystick.spark.jobs.report.settings import ReportSettings, Span, span_of

T0 = 1_800_000_000_000  # a multiple of every step up to an hour
MINUTE, HOUR = 60_000, 3_600_000
SPAN = span_of(ReportSettings(url="", since_ms=T0, until_ms=T0 + HOUR), T0 + 2 * HOUR)

NAMES = (
    *("volume", "dead_letters", "dead_letter_reasons", "outcomes", "outcomes_over_time", "time_to_outcome"),
    *("time_to_outcome_histogram", "checks", "pending", "pending_reasons", "lag", "missing"),
)


def time(milliseconds: int) -> datetime:
    """So many milliseconds after the history begins."""
    return datetime.fromtimestamp((T0 + milliseconds) / 1000, UTC)


def facts(span: Span = SPAN, **figures: Sequence[Row]) -> Facts:
    """Facts with these figures; the others are empty."""
    broker = ReportedBroker("http://127.0.0.1:1", "store", "1.0", 7 * 24 * HOUR, (), bool(figures.get("dead_letters")))
    return Facts(broker, span, {**{name: [] for name in NAMES}, **figures})


TRANSACTION_COLUMNS = (
    "gid string, state string, group string, messages int, created_at timestamp, resolved_at timestamp, "
    "resolved_by string, checks int, last_error string"
)


def resolved(gid: str, state: str, group: str, created: int, took: int, by: str, checks: int = 0) -> tuple[Any, ...]:
    return gid, state, group, 2, time(created), time(created + took), by, checks, None


def waiting(gid: str, state: str, group: str, created: int, checks: int, error: str | None) -> tuple[Any, ...]:
    return gid, state, group, 3, time(created), None, None, checks, error


def transactions() -> list[tuple[Any, ...]]:
    """Within the hour: 5 of shop (4 committed), 2 of bank, a send, a batch, a rollback of an unknown gid; 4 wait."""
    return [
        *(resolved(f"s{took}", "committed", "shop", MINUTE, took, "producer") for took in (1, 2, 3)),
        resolved("s4", "committed", "shop", 59 * MINUTE, 30_000, "check", checks=2),
        resolved("s5", "rolled_back", "shop", 30 * MINUTE, 4, "producer"),
        resolved("b1", "rolled_back", "bank", 30 * MINUTE, 600_000, "exhausted", checks=15),
        resolved("b2", "committed", "bank", 30 * MINUTE, 100, "operator", checks=1),
        resolved("send", "committed", "", MINUTE, 0, "sender"),
        resolved("batch", "committed", "enrich", MINUTE, 0, "ledger"),
        resolved("unknown", "rolled_back", "", MINUTE, 0, "producer"),
        # The range takes its first moment in and leaves its last one out.
        resolved("first", "committed", "edge", -10, 10, "producer"),
        resolved("after", "committed", "edge", HOUR - 10, 10, "producer"),
        resolved("before", "committed", "edge", -20, 10, "producer"),
        waiting("w1", "prepared", "shop", HOUR - 5_000, 0, None),
        waiting("w2", "prepared", "shop", HOUR - 6_000, 1, "no answer"),
        waiting("w3", "parked", "bank", 0, 15, "status 404"),
        waiting("w4", "parked", "bank", -48 * HOUR, 15, "status 404"),
        waiting("later", "prepared", "shop", HOUR, 0, None),
    ]
