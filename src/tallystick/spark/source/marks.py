"""How far a stream has come: what Spark keeps in the checkpoint and hands back. And how far the next batch goes.

Spark compares offsets as text, so that the same place must always be written in the same way: topics and queues in
order, queues as text. A topic's time of creation goes with it: one that was deleted and made again goes on where it
ended, but what had not been read by then is gone; and behind the same address there may be another broker by now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct

from tallystick.core.errors import InvalidRequest
from tallystick.core.wire import TopicView
from tallystick.spark.source.ranges import Loss
from tallystick.spark.source.settings import BEGIN, CREATED, RESERVED
from tallystick.spark.source.topics import Views

PIN = "__start__"  # no topic can have this name, as with those that a mark carries
Q = TypeVar("Q")


class StreamMark(Struct, frozen=True):
    """The next offset of each queue, by topic, and when each topic was created."""

    queues: dict[str, dict[int, int]]
    created: dict[str, int]

    def written(self) -> dict[str, Any]:
        places = {topic: _in_order(self.queues[topic]) for topic in sorted(self.queues)}
        return {**places, CREATED: {topic: self.created[topic] for topic in sorted(self.queues)}}

    def begin(self, view: TopicView, queue: int) -> int:
        """Where to go on in a queue; one that is not here was added, or made anew, and is read from its first."""
        known = self.queues[view.name] if self.created.get(view.name) == view.created_at else {}
        return known.get(queue, view.begin(queue))

    def had_read_all(self, view: TopicView) -> bool:
        """Of the topic that was deleted before this one was made: it goes on exactly here. That it does not begin at 0
        shows that it is the same broker's."""
        places = self.queues[view.name]
        return any(view.begins) and all(offset == view.begin(queue) for queue, offset in places.items())


def read_mark(written: dict[str, Any]) -> StreamMark:
    if not isinstance(written, dict) or CREATED not in written:
        raise InvalidRequest(
            f"the checkpoint holds the place of another source: {str(written)[:200]!r} is not one that 'tallystick' "
            "has written. Give this query a checkpointLocation of its own, and say where it begins: startingOffsets",
            field="checkpointLocation",
        )
    queues = {topic: places for topic, places in written.items() if topic not in RESERVED}
    return StreamMark(_numbered(queues), dict(written[CREATED]))


def _numbered(queues: dict[str, dict[str, int]]) -> dict[str, dict[int, int]]:
    return {topic: {int(queue): offset for queue, offset in places.items()} for topic, places in queues.items()}


def ends(views: dict[str, TopicView]) -> StreamMark:
    return StreamMark(
        {topic: dict(enumerate(view.ends)) for topic, view in views.items()},
        {topic: view.created_at for topic, view in views.items()},
    )


# --- batch 0: Spark stores where a batch ends, before anything of it is read, but not where the first begins ----------


def pin(kind: str) -> dict[str, str]:
    """Stands for a start that has not been looked up. Spark asks for it again when batch 0 is repeated."""
    return {PIN: kind}


def is_pin(written: dict[str, Any]) -> bool:
    return isinstance(written, dict) and PIN in written


def first_end(begin: StreamMark, end: StreamMark) -> dict[str, Any]:
    """The end of batch 0, which carries where the batch begins: whoever repeats it begins there, whatever the topics
    look like by then. Where batch 0 holds nothing, its end is the start, and says all."""
    if begin == end:
        return end.written()
    places = begin.written()
    del places[CREATED]
    return {**end.written(), BEGIN: places}


def first_begin(end: dict[str, Any]) -> StreamMark | None:
    """Where batch 0 begins that ends there; None if it holds nothing."""
    return StreamMark(_numbered(end[BEGIN]), dict(end[CREATED])) if BEGIN in end else None


def _in_order(places: dict[int, int]) -> dict[str, int]:
    return {str(queue): places[queue] for queue in sorted(places)}


# --- the next batch: rules only, by the look of the topics ------------------------------------------------------


class Advance(Struct, frozen=True):
    """Where the next batch ends, and how many messages were waiting in all."""

    mark: StreamMark
    waiting: int


def advance(begin: StreamMark, views: Views, most: int | None, loss: Loss, archived: bool) -> Advance:
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
    return Advance(StreamMark(queues, {topic: view.created_at for topic, view in views.items()}), total)


def _of(view: TopicView) -> range:
    return range(view.queues)


def _base(begin: StreamMark, view: TopicView, queue: int, archived: bool) -> int:
    """Where the batch begins in a queue. Without an archive, trimmed messages cannot be read and do not count."""
    offset = begin.begin(view, queue)
    return min(offset if archived else max(offset, view.starts[queue]), view.ends[queue])


def _compare(begin: StreamMark, views: Views, loss: Loss) -> None:
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


# --- how much of each queue a batch takes when all of it would be too much --------------------------------------


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
