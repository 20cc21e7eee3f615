"""A step's rounds as lines of the report: each side's rate, ours beside each other one, and what the brokers spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.report import Figure, Report
from benchmarks.rounds import Rounds, Turn, by_turns
from benchmarks.spark.ground import Ground
from benchmarks.spark.kafka.sides import DEFAULTS, HERE

MILLION = 1_000_000


def compare(
    ground: Ground,
    step: str,
    ways: Mapping[str, Callable[[], Turn]],
    ratios: Mapping[str, float] | None = None,
    broker_seconds: float | None = None,
) -> None:
    """Measure all ways by turns. `ratios` are what our rate is to be at least, as a share of others'; `broker_seconds`
    what our broker's processor time for a million rows is to be at most."""
    if ground.rounds > 1:
        by_turns(ways, rounds=1)  # whoever comes first would pay for what Java compiles
    found = by_turns(ways, ground.rounds)
    others = [name for name in ways if name != HERE]
    for other in others:
        ground.add(f"{step}: {other}", _rate(found, other), "rows/s")
    for other in others:
        ratio = found.median(lambda turns, other=other: turns[HERE].rate / turns[other].rate)
        name, target = f"{step}: here / {other}", (ratios or {}).get(other)
        ground.add(name, _rate(found, HERE), "rows/s", ratio=ratio, ratio_of=other, ratio_target=target)
    _add_processor(ground.report, step, found, broker_seconds)


def _add_processor(report: Report, step: str, found: Rounds, broker_seconds: float | None) -> None:
    for side, target in ((HERE, broker_seconds), (DEFAULTS, None)):
        broker = found.median(lambda turns, side=side: turns[side].broker) * MILLION
        spark = found.median(lambda turns, side=side: turns[side].processor) * MILLION
        report.add(Figure(f"{step}: {side}, broker's processor time", broker, "s / million rows", target, at_most=True))
        report.add(Figure(f"{step}: {side}, Spark's processor time", spark, "s / million rows"))


def _rate(found: Rounds, side: str) -> float:
    return found.median(lambda turns: turns[side].rate)
