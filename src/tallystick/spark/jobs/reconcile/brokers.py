"""What the driver asks a broker: how far its consumer groups are, where its queues end, how long it remembers."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from tallystick.core.errors import NotFound
from tallystick.core.wire import BrokerInfo, GroupView, TopicView
from tallystick.link import Link

DEAD_LETTERS = "dlq."
PATIENCE_SECONDS = 60.0


class Progress(Struct, frozen=True):
    """How far a group is in a topic: what lies before `offsets` and is older than `oldest_unsettled_at` is settled."""

    offsets: dict[int, int]
    oldest_unsettled_at: int | None


class Pinned(Struct, frozen=True):
    """A broker's log at one moment: everything before the ends was visible at `at_ms` of its own clock or soon after,
    and nothing behind them is read."""

    url: str
    store: str
    at_ms: int
    dedup_retention_ms: int
    topics: tuple[TopicView, ...]

    @property
    def live(self) -> list[TopicView]:
        return [topic for topic in self.topics if not topic.name.startswith(DEAD_LETTERS)]

    def dead(self, group: str) -> list[TopicView]:
        """The dead-letter topic of a group, if there is anything in it."""
        name = f"{DEAD_LETTERS}{group}"[:127]
        return [topic for topic in self.topics if topic.name == name and any(topic.ends)]


def open_link(url: str) -> Link:
    return Link(url, patience=PATIENCE_SECONDS)


def info(url: str) -> BrokerInfo:
    with open_link(url) as link:
        return msgspec.convert(link.get("info"), BrokerInfo)


def progress(url: str, group: str) -> dict[str, Progress]:
    """By topic, how far a group is; nothing for a group that this broker does not know."""
    with open_link(url) as link:
        try:
            found: list[Any] = link.get("groups", group)["groups"]
        except NotFound:
            return {}
    views = [msgspec.convert(one, GroupView) for one in found]
    return {
        view.topic: Progress({queue.queue: queue.offset for queue in view.queues}, view.oldest_unsettled_at)
        for view in views
    }


def pin(url: str, only: tuple[str, ...]) -> Pinned:
    """Fix where the log ends. The clock is read first: what was committed before that is before the ends."""
    with open_link(url) as link:
        told = msgspec.convert(link.get("info"), BrokerInfo)
        views = [msgspec.convert(one, TopicView) for one in link.get("topics")["topics"]]
    chosen = [view for view in views if not only or view.name in only or view.name.startswith(DEAD_LETTERS)]
    missing = [name for name in only if name not in {view.name for view in chosen}]
    if missing:
        raise NotFound(f"topics: the broker at {url} has no topic {', '.join(map(repr, missing))}", field="topics")
    return Pinned(url, told.store, told.now_ms, told.dedup_retention_ms, tuple(chosen))


def has_delayed(url: str) -> bool:
    """Whether there are messages that are committed and wait for their time."""
    import pyarrow as pa

    with open_link(url) as link, link.arrow("tables", "delayed", limit=1) as answer:
        return bool(pa.ipc.open_stream(answer.read()).read_all().num_rows)


def oldest_kept(url: str, topic: TopicView, queue: int) -> int | None:
    """When the first message that is still in a queue was stored; None if the queue is empty."""
    if topic.starts[queue] >= topic.ends[queue]:
        return None
    with open_link(url) as link:
        path = ("topics", topic.name, "queues", str(queue), "messages")
        # From the start that the queue has by now, which retention may have moved again.
        start = msgspec.convert(link.get("topics", topic.name), TopicView).starts[queue]
        page = link.get(*path, offset=start, max=1)
    return int(page["messages"][0]["stored_at"]) if page["messages"] else None
