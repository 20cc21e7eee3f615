"""From what should be read to what can be: ranges for tasks, and a word on everything that is gone."""

from __future__ import annotations

from collections.abc import Iterable

from tallystick.core.wire import TopicView
from tallystick.spark.source.archived import NOTHING, Archived
from tallystick.spark.source.loss import Loss
from tallystick.spark.source.ranges import Range, divided, kept
from tallystick.spark.source.settings import SourceSettings


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
