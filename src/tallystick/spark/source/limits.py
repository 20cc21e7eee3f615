"""How much of each queue one batch takes when all of it would be too much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Q = TypeVar("Q")


def fair_share(waiting: Mapping[Q, int], most: int, turn: int) -> dict[Q, int]:
    """At most `most` of what is waiting in the queues, in total exactly that if there is as much.

    One for each queue first, so that a short queue beside a long one is never left out; where even that is too much,
    `turn` decides who begins. The rest by length: queues that are equally far behind stay so.
    """
    lengths = {queue: length for queue, length in waiting.items() if length > 0}
    if sum(lengths.values()) <= most:
        return lengths
    queues = list(lengths)
    first = turn % len(queues)
    taken = dict.fromkeys((queues[first:] + queues[:first])[:most], 1)
    rest = most - len(taken)
    if rest:
        for queue, share in _by_length({queue: length - 1 for queue, length in lengths.items()}, rest).items():
            taken[queue] += share
    return taken


def _by_length(lengths: dict[Q, int], most: int) -> dict[Q, int]:
    """Whole numbers in proportion, with the sum `most`: rounded as the running total is, so that nothing is lost."""
    total, seen, given = sum(lengths.values()), 0, 0
    shares = {}
    for queue, length in lengths.items():
        seen += length
        upto = most * seen // total
        shares[queue], given = upto - given, upto
    return shares
