"""The topics that are read, as the broker has them now; and a cheap wait for their next message."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec

from tallystick.core.errors import NotFound
from tallystick.core.wire import TopicView
from tallystick.link import Link
from tallystick.spark.source.settings import SourceSettings

Views = dict[str, TopicView]
NAMED = "option 'url'"
_LONGEST_QUERY = 6_000  # bytes of names in one request; beyond that the whole list is asked for


def open_link(settings: SourceSettings) -> Link:
    return Link(settings.url, patience=settings.retry, named=NAMED)


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


def _views(answer: Any) -> Views:
    return {view.name: view for view in msgspec.convert(answer["topics"], list[TopicView])}
