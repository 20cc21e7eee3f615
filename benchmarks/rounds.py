"""Ways to do one thing, beside each other: measured by turns, so that all see the same machine, and by medians."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from msgspec import Struct

ROUNDS = 3


class Turn(Struct, frozen=True):
    """What one way came to in one round."""

    rate: float  # how many a second
    seconds: float  # that one took: the median
    processor: float  # seconds of processor time that one took where it was done, brokers and databases not counted
    requests: float = 0.0  # to the broker, for one
    broker: float = 0.0  # seconds of the broker's processor time that one took


Round = Mapping[str, Turn]


class Rounds:
    """`by_turns(...).median(lambda turns: turns["block"].rate / turns["alone"].rate)`: what is compared is of the same
    round, and then the median of the rounds counts."""

    def __init__(self, rounds: list[Round]) -> None:
        self._rounds = rounds

    def median(self, figure: Callable[[Round], float]) -> float:
        return median(map(figure, self._rounds))


def by_turns(ways: Mapping[str, Callable[[], Turn]], rounds: int = ROUNDS) -> Rounds:
    """Measure each way once, and again, and again."""
    return Rounds([{name: measure() for name, measure in ways.items()} for _ in range(rounds)])
