"""The classes that durations are counted in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

TOOK_MS = [
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000),
    *(60_000, 300_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000),
]
AGE_MS = [10_000, 60_000, 300_000, 3_600_000, 21_600_000, 86_400_000]


def classes(edges: Sequence[int]) -> list[tuple[int, int | None]]:
    """Every class as (more than, at most); the last has no upper edge."""
    return [*pairwise([0, *edges]), (edges[-1], None)]
