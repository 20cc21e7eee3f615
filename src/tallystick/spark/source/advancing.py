"""How far the next micro-batch reads: rules only, by the look of the topics."""

from __future__ import annotations

from msgspec import Struct

from tallystick.core.wire import TopicView
from tallystick.spark.source.limits import fair_share
from tallystick.spark.source.loss import Loss
from tallystick.spark.source.marks import Mark
from tallystick.spark.source.topics import Views


class Advance(Struct, frozen=True):
    """Where the next batch ends, and how many messages were waiting in all."""

    mark: Mark
    waiting: int


def advance(begin: Mark, views: Views, most: int | None, loss: Loss, archived: bool) -> Advance:
    """From `begin` on, up to `most` messages. Reports topics and queues that are not what they were; messages lost to
    retention are reported where their range is planned, because a repeated batch is planned only."""
    _compare(begin, views, loss)
    bases = {
        (topic, queue): _base(begin, view, queue, archived) for topic, view in views.items() for queue in _of(view)
    }
    waiting = {place: views[place[0]].ends[place[1]] - base for place, base in bases.items()}
    total = sum(count for count in waiting.values() if count > 0)
    taken = fair_share(waiting, total if most is None else most, turn=sum(bases.values()))
    queues: dict[str, dict[int, int]] = {topic: {} for topic in views}
    for (topic, queue), base in bases.items():
        queues[topic][queue] = base + taken.get((topic, queue), 0)
    return Advance(Mark(queues, {topic: view.created_at for topic, view in views.items()}), total)


def _of(view: TopicView) -> range:
    return range(view.queues)


def _base(begin: Mark, view: TopicView, queue: int, archived: bool) -> int:
    """Where the batch begins in a queue. Without an archive, trimmed messages cannot be read and do not count."""
    offset = begin.begin(view, queue)
    return min(offset if archived else max(offset, view.starts[queue]), view.ends[queue])


def _compare(begin: Mark, views: Views, loss: Loss) -> None:
    for topic, places in begin.queues.items():
        view = views.get(topic)
        if view is None or view.created_at != begin.created.get(topic):
            if view is None or not begin.had_read_all(view):
                loss.deleted(topic, anew=view is not None)
            continue
        for queue, offset in places.items():
            end = view.ends[queue] if queue < view.queues else 0
            if offset > end:
                loss.cut(topic, queue, offset, end)
