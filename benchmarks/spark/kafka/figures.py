"""A step's rounds as lines of the report: each side's rate, ours beside each other one, and what the brokers spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.report import Figure, Report
from benchmarks.rounds import Rounds, Turn, by_turns
from benchmarks.spark.kafka.sides import DEFAULTS, HERE

MILLION = 1_000_000


def compare(
    report: Report,
    step: str,
    ways: Mapping[str, Callable[[], Turn]],
    ratios: Mapping[str, float] | None = None,
    broker_seconds: float | None = None,
) -> None:
    """Measure all ways by turns, after a first turn each that does not count. `ratios` are to be ours to the others'
    rates at least, `broker_seconds` our broker's processor time for a million rows at most."""
    by_turns(ways, rounds=1)
    found = by_turns(ways)
    here = _rate(found, HERE)
    for other in ways.keys() - {HERE}:
        report.add(Figure(f"{step}: {other}", _rate(found, other), "rows/s"))
    for other in ways.keys() - {HERE}:
        ratio = found.median(lambda turns, other=other: turns[HERE].rate / turns[other].rate)
        target = (ratios or {}).get(other)
        name = f"{step}: here, beside {other}"
        report.add(Figure(name, here, "rows/s", ratio=ratio, ratio_of=other, ratio_target=target))
    for side, target in ((HERE, broker_seconds), (DEFAULTS, None)):
        broker = found.median(lambda turns, side=side: turns[side].broker) * MILLION
        spark = found.median(lambda turns, side=side: turns[side].processor) * MILLION
        name = f"{step}: {side}, processor time for 1,000,000 rows"
        report.add(Figure(f"{name}, broker", broker, "s", target, at_most=True))
        report.add(Figure(f"{name}, Spark", spark, "s"))


def _rate(found: Rounds, side: str) -> float:
    return found.median(lambda turns: turns[side].rate)
