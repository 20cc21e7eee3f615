"""Ranges of offsets: what one task reads, and how a range is divided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True)
class Range(InputPartition):
    """The offsets in [start, end) of one queue; `archived` ones come from the archive, all others from the broker.
    `created` tells which topic of that name is meant: it may be deleted and made again before the range is read."""

    topic: str
    queue: int
    start: int
    end: int
    archived: bool = False
    created: int = 0  # 0 if it does not matter

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def part(self, start: int, end: int, archived: bool | None = None) -> Range:
        return replace(self, start=start, end=end, archived=self.archived if archived is None else archived)


def kept(wanted: Range, start: int, covered: tuple[int, int]) -> tuple[list[Range], list[tuple[int, int]]]:
    """What can be read of a range when the broker's queue begins at `start` and the archive has the offsets `covered`;
    and the gaps. Everything that the broker has is read from the broker."""
    below = min(wanted.end, start)  # up to here the broker has nothing
    first = min(max(wanted.start, covered[0]), below)
    last = max(first, min(covered[1], below))
    pieces = [wanted.part(first, last, archived=True), wanted.part(max(wanted.start, start), wanted.end)]
    gaps = [(wanted.start, first), (last, below)] if first < last else [(wanted.start, below)]
    return [piece for piece in pieces if len(piece)], [gap for gap in gaps if gap[0] < gap[1]]


def divided(ranges: Iterable[Range], least: int | None, most: int | None) -> list[Range]:
    """At least `least` ranges, by length, and none longer than `most`; a range without messages is left out."""
    whole = [one for one in ranges if len(one)]
    total = sum(map(len, whole))
    return [piece for one in whole for piece in _pieces(one, _count(len(one), total, least, most))]


def _count(length: int, total: int, least: int | None, most: int | None) -> int:
    by_share = -(-length * (least or 1) // total)
    by_length = -(-length // most) if most else 1
    return min(length, max(by_share, by_length))


def _pieces(one: Range, count: int) -> Iterator[Range]:
    bounds = [one.start + len(one) * number // count for number in range(count + 1)]
    for start, end in pairwise(bounds):
        yield one.part(start, end)
