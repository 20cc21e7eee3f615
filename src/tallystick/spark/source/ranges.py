"""From what should be read to what can be: ranges of offsets for tasks, and a word on everything that is gone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from pyspark.sql.datasource import InputPartition

from tallystick.core.errors import DataLoss
from tallystick.core.wire import TopicView
from tallystick.spark.options import refused
from tallystick.spark.source.settings import SourceSettings

if TYPE_CHECKING:
    from tallystick.spark.archive.layout import Archive

NOTHING = (0, 0)
_log = logging.getLogger("tallystick.spark")


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


# --- planning ---------------------------------------------------------------------------------------------------


class Planner:
    """Plans reads by the look of the topics; a reader that finds the look outdated plans the rest anew."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self.archived = Archived(settings.archive)
        self.loss = Loss(settings.fail_on_loss)

    def tasks(self, wanted: Iterable[tuple[Range, TopicView]]) -> list[Range]:
        self.archived.refresh()
        there = [piece for one, view in wanted for piece in self.available(one, view)]
        return divided(there, self._settings.min_partitions, self._settings.max_per_partition)

    def available(self, wanted: Range, view: TopicView) -> list[Range]:
        """The pieces of a range that are there, in order; what is not is reported first."""
        topic, queue = wanted.topic, wanted.queue
        if not len(wanted):
            return []
        if wanted.created not in (0, view.created_at):
            self.loss.remade(topic, queue, (wanted.start, wanted.end))
            return []
        start, end = (view.starts[queue], view.ends[queue]) if queue < view.queues else (0, 0)
        if wanted.end > end:
            self.loss.cut(topic, queue, wanted.end, end)
            wanted = wanted.part(wanted.start, max(wanted.start, end))
        covered = self.archived.covered(view, queue) if wanted.start < start else NOTHING
        pieces, gaps = kept(wanted, start, covered)
        for gap in gaps:
            self.loss.trimmed(topic, queue, gap, start, view.begin(queue))
        return pieces


# --- the archive beside the broker: offsets that the broker has trimmed, if the user has kept them --------------


class Archived:
    """The archive at the path of option 'archive'; without a path, an archive that has nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._archive: Archive | None = None
        self._covers: dict[str, dict[int, tuple[int, int]]] = {}

    def refresh(self) -> None:
        """Forget what is known of the archive: it grows while a stream runs."""
        self._covers.clear()

    def covered(self, view: TopicView, queue: int) -> tuple[int, int]:
        """The archived offsets of a queue, as [first, last)."""
        if not self._path:
            return NOTHING
        if view.name not in self._covers:
            self._check_identity(view)
            self._covers[view.name] = self._opened().covers(view.name)
        return self._covers[view.name].get(queue, NOTHING)

    def _check_identity(self, view: TopicView) -> None:
        """Offsets mean something only within one topic, and a name may have had several."""
        for manifest in self._opened().manifests(view.name)[-1:]:
            if manifest.created_at != view.created_at:
                raise refused(
                    "archive",
                    f"{self._path} holds another topic {view.name!r} than the broker: one was deleted and made again, "
                    f"or comes from another broker (created at {manifest.created_at} and {view.created_at})",
                )

    def first(self, view: TopicView, queue: int) -> int:
        """The earliest offset of a queue that is anywhere."""
        start, end = self.covered(view, queue)
        return min(start, view.starts[queue]) if start < end else view.starts[queue]

    def at_time(self, view: TopicView, queue: int, time: int) -> int:
        """The first offset stored at or after `time` of those that the broker no longer has; its start if none is."""
        start = view.starts[queue]
        if self.covered(view, queue) == NOTHING:
            return start
        return min(self._opened().offsets_at(view.name, time).get(queue, start), start)

    def read(self, topic: str, queue: int, start: int, end: int, columns: Sequence[str] | None) -> Iterator[Any]:
        return self._opened().read(topic, queue, start, end, columns)

    def _opened(self) -> Archive:
        if self._archive is None:
            from tallystick.spark.archive.layout import Archive

            self._archive = Archive(self._path)
        return self._archive


# --- messages that are no longer there: fail, or say so and go on -----------------------------------------------


class Loss(Struct, frozen=True):
    """`fail` is the option failOnDataLoss."""

    fail: bool

    def report(self, what: str) -> None:
        """Raise, or write a warning where Spark keeps the logs of its Python processes."""
        if self.fail:
            raise DataLoss(f"{what}. To go on without them, set option 'failOnDataLoss' to 'false'")
        _log.warning("%s. Going on without them, as failOnDataLoss is false", what)

    def trimmed(self, topic: str, queue: int, gone: tuple[int, int], start: int, begin: int) -> None:
        first, after = gone
        why = "retention or a trim was faster than this reader"
        if first < begin:
            why = f"the topic was deleted and made again, and goes on at {begin}"
        self.report(
            f"{topic}/{queue}: offsets {first} to {after - 1} are gone ({after - first} messages); the broker keeps "
            f"offsets from {start} on ({why})"
        )

    def remade(self, topic: str, queue: int, gone: tuple[int, int]) -> None:
        self.report(
            f"{topic}/{queue}: offsets {gone[0]} to {gone[1] - 1} are gone: the topic was deleted and made again after "
            "it was looked at (or another broker serves the address by now)"
        )

    def cut(self, topic: str, queue: int, wanted: int, end: int) -> None:
        self.report(
            f"{topic}/{queue}: offsets {end} to {wanted - 1} are gone; the broker's queue ends at {end} "
            "(was its data directory restored from a copy?)"
        )

    def deleted(self, topic: str, anew: bool) -> None:
        since = "deleted and made again" if anew else "deleted"
        self.report(f"{topic}: the topic was {since} since it was last read; messages not read by then are gone")
