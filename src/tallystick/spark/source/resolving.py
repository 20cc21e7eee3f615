"""From a place as the user wrote it to the offset of every queue."""

from __future__ import annotations

from tallystick.core.wire import TopicView
from tallystick.link import Link
from tallystick.spark.options import refused
from tallystick.spark.source.archived import Archived
from tallystick.spark.source.places import EARLIEST, LATEST, Place
from tallystick.spark.source.topics import Views

Offsets = dict[str, dict[int, int]]


def resolve(place: Place, views: Views, link: Link, archived: Archived, none_later_fails: bool = False) -> Offsets:
    """The offset of every queue in `views`. None lies beyond the queue's end there, even if more came since."""
    for topic in place.by_queue:
        if topic not in views:
            raise refused(place.option, f"names topic {topic!r}, which is not at {link.url}")
    return {topic: _of_topic(place, view, link, archived, none_later_fails) for topic, view in views.items()}


def _of_topic(place: Place, view: TopicView, link: Link, archived: Archived, none_later_fails: bool) -> dict[int, int]:
    queues = range(view.queues)
    if place.kind == "latest":
        return dict(enumerate(view.ends))
    if place.kind == "earliest":
        return {queue: archived.first(view, queue) for queue in queues}
    if place.kind == "time":
        times = dict.fromkeys(queues, place.time)
        return _by_time(place, view, times, link, archived, none_later_fails)
    given = _complete(place, view)
    if place.kind == "times":
        return _by_time(place, view, given, link, archived, none_later_fails)
    return {queue: _by_number(place, view, queue, given[queue], archived) for queue in queues}


def _complete(place: Place, view: TopicView) -> dict[int, int]:
    """What was written for each queue of the topic, none left out: a queue forgotten would be messages forgotten."""
    given = place.by_queue.get(view.name, {})
    missing = [str(queue) for queue in range(view.queues) if queue not in given]
    unknown = [str(queue) for queue in given if queue >= view.queues]
    if missing or unknown:
        told = f"says nothing of queue {', '.join(missing)}" if missing else f"has no queue {', '.join(unknown)}"
        raise refused(
            place.option,
            f"topic {view.name!r} {told}: name each of its {view.queues} queues, "
            f"with {EARLIEST} for its earliest and {LATEST} for its latest offset",
        )
    return given


def _by_number(place: Place, view: TopicView, queue: int, number: int, archived: Archived) -> int:
    if number == EARLIEST:
        return archived.first(view, queue)
    if number == LATEST:
        return view.ends[queue]
    if number > view.ends[queue]:
        raise refused(place.option, f"{view.name}/{queue}: {number} is beyond the end, which is {view.ends[queue]}")
    return number


def _by_time(
    place: Place, view: TopicView, times: dict[int, int], link: Link, archived: Archived, none_later_fails: bool
) -> dict[int, int]:
    told = {time: _first_stored(link, view.name, time) for time in set(times.values())}
    found = {}
    for queue, time in times.items():
        # A queue added since then is not in `view`, but what was told may have it, and later ends as well.
        offset = min(told[time][queue], view.ends[queue])
        if offset <= view.starts[queue]:
            offset = archived.at_time(view, queue, time)
        if none_later_fails and offset == view.ends[queue]:
            raise refused(
                place.option,
                f"{view.name}/{queue}: no message was stored at or after {time}; "
                "startingOffsetsByTimestampStrategy 'latest' would begin at the end",
            )
        found[queue] = offset
    return found


def _first_stored(link: Link, topic: str, time: int) -> list[int]:
    offsets: list[int] = link.get("topics", topic, "offsets", timestamp=time)["offsets"]
    return offsets
