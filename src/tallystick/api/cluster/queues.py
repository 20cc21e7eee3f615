"""The queues of a topic, numbered over a cluster: queue g is queue g // n of the store with the number g % n.

So a topic of a cluster is read and shown like one of a single broker, and keeps the numbers of its queues when it gets
more of them. How many stores there are never changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tallystick.core.errors import InvalidRequest, OffsetOutOfRange
from tallystick.core.wire import GroupView, QueueOffset, TopicView

T = TypeVar("T")


def local(queue: int, stores: int) -> tuple[int, int]:
    """The number of the store, and that of the queue there."""
    return queue % stores, queue // stores


def by_store(offsets: Mapping[int, T], stores: int) -> dict[int, dict[int, T]]:
    """What is said of queues, for each store that has some of them."""
    divided: dict[int, dict[int, T]] = defaultdict(dict)
    for queue, value in offsets.items():
        number, inside = local(queue, stores)
        divided[number][inside] = value
    return divided


def check_empty(topic: TopicView, store: int, stores: int, offsets: Mapping[int, int]) -> None:
    """Places in queues of a store that does not have the topic yet. They are empty: there is one place, the start."""
    for inside, offset in offsets.items():
        queue = inside * stores + store
        if queue >= topic.queues:
            raise InvalidRequest(f"offsets: topic {topic.name!r} has no queue {queue}", field="offsets")
        if offset:
            raise OffsetOutOfRange(
                f"offsets: {offset} is outside of {topic.name}/{queue}, which holds 0 to 0", field="offsets"
            )


def merged_topic(views: Sequence[TopicView | None], stores: Sequence[str] = ()) -> TopicView:
    """A topic as the stores show it, in the order of their numbers; None where it is not known (yet). `stores` are
    their ids, to name those."""
    known = [view for view in views if view is not None]
    starts, ends, begins = (
        woven([() if view is None else getattr(view, name) for view in views]) for name in ("starts", "ends", "begins")
    )
    first = known[0]
    created_at = min(view.created_at for view in known)
    missing_on = [store for store, view in zip(stores, views, strict=False) if view is None]
    return TopicView(first.name, len(ends), first.retention_ms, created_at, starts, ends, begins, missing_on)


def woven(columns: Sequence[Sequence[int]]) -> list[int]:
    """Numbers of queues, from one list for each store. A queue that a store does not have (yet) is empty."""
    longest = max(map(len, columns), default=0)
    return [column[at] if at < len(column) else 0 for at in range(longest) for column in columns]


def merged_group(views: Sequence[GroupView | None]) -> GroupView:
    """A consumer group on one topic, as the stores show it, in the order of their numbers."""
    known = [view for view in views if view is not None]
    queues = [
        QueueOffset(one.queue * len(views) + number, one.offset, one.start, one.end, one.lag)
        for number, view in enumerate(views)
        for one in (() if view is None else view.queues)
    ]
    oldest = [view.oldest_unsettled_at for view in known if view.oldest_unsettled_at is not None]
    return GroupView(
        known[0].group,
        known[0].topic,
        sorted(queues, key=lambda one: one.queue),
        sum(view.leased for view in known),
        sum(view.lag for view in known),
        min(oldest, default=None),
    )
