"""The topics that are read, as the broker has them now; and a cheap wait for their next message.

And from a place as the user wrote it to the offset of every queue.
"""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec

from tallystick.core.errors import NotFound
from tallystick.core.wire import TopicView
from tallystick.link import Link
from tallystick.spark.brokers import BrokersLink
from tallystick.spark.options import refused
from tallystick.spark.source.ranges import Archived
from tallystick.spark.source.settings import EARLIEST, LATEST, GivenPlace, SourceSettings

Views = dict[str, TopicView]
NAMED = "option 'url'"
_LONGEST_QUERY = 6_000  # bytes of names in one request; beyond that the whole list is asked for
Offsets = dict[str, dict[int, int]]


def open_link(settings: SourceSettings) -> BrokersLink:
    return BrokersLink(settings.url, patience=settings.retry, named=NAMED, credentials=settings.credentials)


class Topics:
    """Looks at the topics that the settings name, or whose names match their pattern as a whole."""

    def __init__(self, link: Link, settings: SourceSettings) -> None:
        self._link = link
        self._names = settings.topics
        self._pattern = re.compile(settings.pattern)
        self._position: int | None = None
        self._seen: Views = {}

    def look(self, wait: float = 0.0) -> Views:
        """The topics now. With `wait`, only once they differ from those seen last, or that many seconds later."""
        if self._names:
            self._seen = self._ask(self._names, wait)
            return self._seen
        before, self._seen = self._seen, self._matching()
        if wait and self._seen == before:
            self._seen = self._wait_for_matching(wait)
        return self._seen

    def require(self, views: Views) -> Views:
        """A start needs the topics that were named; later on, one that is missing was deleted."""
        for name in self._names:
            if name not in views:
                raise NotFound(
                    f"there is no topic {name!r} at {self._link.url}; make it with `tallystick topics create {name}`, "
                    "or read topics that are yet to come with option 'subscribePattern'",
                    field="topic",
                )
        return views

    def _matching(self) -> Views:
        # The pattern stays here: one that takes for ever takes the time of its own query, not of the broker.
        found = _views(self._link.get("topics"))
        return {name: view for name, view in found.items() if self._pattern.fullmatch(name)}

    def _wait_for_matching(self, wait: float) -> Views:
        """Only for the topics known by now: the others' messages must not wake us, and new topics can wait a moment."""
        if not self._seen:
            time.sleep(wait)
            return self._seen
        return self._ask(tuple(self._seen), wait)

    def _ask(self, names: tuple[str, ...], wait: float) -> Views:
        joined = ",".join(names)
        query: dict[str, Any] = {"names": joined} if len(joined) <= _LONGEST_QUERY else {}
        if wait and self._position is not None:
            query |= {"position": self._position, "wait_ms": int(wait * 1000)}
        answer = self._link.get("topics", **query)
        self._position = answer.get("position")
        wanted = set(names)
        return {name: view for name, view in _views(answer).items() if name in wanted}


def topic_view(link: Link, topic: str) -> TopicView:
    return msgspec.convert(link.get("topics", topic), TopicView)


def _views(answer: Any) -> Views:
    return {view.name: view for view in msgspec.convert(answer["topics"], list[TopicView])}


# --- places -----------------------------------------------------------------------------------------------------


def resolve(place: GivenPlace, views: Views, link: Link, archived: Archived, none_later_fails: bool = False) -> Offsets:
    """The offset of every queue in `views`. None lies beyond the queue's end there, even if more came since."""
    for topic in place.by_queue:
        if topic not in views:
            raise refused(place.option, f"names topic {topic!r}, which is not at {link.url}")
    return {topic: _of_topic(place, view, link, archived, none_later_fails) for topic, view in views.items()}


def _of_topic(
    place: GivenPlace, view: TopicView, link: Link, archived: Archived, none_later_fails: bool
) -> dict[int, int]:
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


def _complete(place: GivenPlace, view: TopicView) -> dict[int, int]:
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


def _by_number(place: GivenPlace, view: TopicView, queue: int, number: int, archived: Archived) -> int:
    if number == EARLIEST:
        return archived.first(view, queue)
    if number == LATEST:
        return view.ends[queue]
    if number > view.ends[queue]:
        raise refused(place.option, f"{view.name}/{queue}: {number} is beyond the end, which is {view.ends[queue]}")
    return number


def _by_time(
    place: GivenPlace, view: TopicView, times: dict[int, int], link: Link, archived: Archived, none_later_fails: bool
) -> dict[int, int]:
    told = {at_ms: first_stored(link, view.name, at_ms) for at_ms in set(times.values())}
    found = {}
    for queue, at_ms in times.items():
        # A queue added since then is not in `view`, but what was told may have it, and later ends as well.
        offset = min(told[at_ms][queue], view.ends[queue])
        if offset <= view.starts[queue]:
            offset = archived.at_time(view, queue, at_ms)
        if none_later_fails and offset == view.ends[queue]:
            raise refused(
                place.option,
                f"{view.name}/{queue}: no message was stored at or after {at_ms}; "
                "startingOffsetsByTimestampStrategy 'latest' would begin at the end",
            )
        found[queue] = offset
    return found


def first_stored(link: Link, topic: str, at_ms: int) -> list[int]:
    """By queue, the first kept offset that was stored at or after a time; the queue's end if there is none."""
    offsets: list[int] = link.get("topics", topic, "offsets", timestamp=at_ms)["offsets"]
    return offsets
