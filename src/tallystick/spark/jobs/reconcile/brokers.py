"""What the driver asks a broker: where its queues end, how long it remembers, and how far each consumer group is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from tallystick.core.errors import NotFound
from tallystick.core.names import DEAD_LETTERS, dead_letter_topic
from tallystick.core.wire import BrokerInfo, GroupView, TopicView
from tallystick.credentials.credentials import NO_CREDENTIALS, Credentials
from tallystick.spark.brokers import BrokersLink, stores_behind
from tallystick.spark.jobs.reconcile.settings import Consumer, ReconcileSettings
from tallystick.spark.permissions import permissions_at, require_all
from tallystick.spark.source.topics import topic_view

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_SECONDS = 60.0
_BY_GROUP = "reads_{0} boolean, limit_{0} bigint, oldest_{0} bigint, tags_{0} array<string>"
ForGroup = tuple[bool, int | None, int | None, list[str] | None]


class GroupProgress(Struct, frozen=True):
    """How far a group is in a topic: what lies before `offsets` and is older than `oldest_unsettled_at` is settled."""

    offsets: dict[int, int]
    oldest_unsettled_at: int | None


class PinnedLog(Struct, frozen=True):
    """A broker's log at one moment: everything before the ends was visible at `at_ms` of its own clock or soon after,
    and nothing behind them is read."""

    url: str
    store: str
    at_ms: int
    dedup_retention_ms: int
    topics: tuple[TopicView, ...]
    credentials: Credentials = NO_CREDENTIALS

    @property
    def live(self) -> list[TopicView]:
        return [topic for topic in self.topics if not topic.name.startswith(DEAD_LETTERS)]

    def dead(self, group: str) -> list[TopicView]:
        """The dead-letter topic of a group, if there is anything in it."""
        name = dead_letter_topic(group)
        return [topic for topic in self.topics if topic.name == name and any(topic.ends)]


def open_link(url: str, credentials: Credentials) -> BrokersLink:
    return BrokersLink(url, patience=PATIENCE_SECONDS, credentials=credentials)


def require_permissions(settings: ReconcileSettings) -> None:
    """Refuse a token that may not read all that is compared, before anything is read."""
    letters = [dead_letter_topic(one.group) for one in settings.consumers] if settings.topics else []
    for url in settings.brokers:
        with open_link(url, settings.credentials) as link:
            require_all(permissions_at(link), "reconcile", [*settings.topics, *letters])


def stores_at(urls: Iterable[str], credentials: Credentials) -> tuple[str, ...]:
    """The addresses of all stores. What a cluster holds is compared store by store, as with several brokers: ids of
    messages and the places of consumers name the store. A cluster may be named by any number of its brokers."""
    found: dict[str, str] = {}
    for url in urls:
        found |= stores_behind(url, PATIENCE_SECONDS, credentials=credentials)
    return tuple(found.values())


def info(url: str, credentials: Credentials) -> BrokerInfo:
    with open_link(url, credentials) as link:
        return msgspec.convert(link.get("info"), BrokerInfo)


def progress(url: str, group: str, credentials: Credentials) -> dict[str, GroupProgress]:
    """By topic, how far a group is; nothing for a group that this broker does not know."""
    with open_link(url, credentials) as link:
        try:
            found: list[Any] = link.get("groups", group)["groups"]
        except NotFound:
            return {}
    views = [msgspec.convert(one, GroupView) for one in found]
    return {
        view.topic: GroupProgress({queue.queue: queue.offset for queue in view.queues}, view.oldest_unsettled_at)
        for view in views
    }


def pin(url: str, only: tuple[str, ...], credentials: Credentials = NO_CREDENTIALS) -> PinnedLog:
    """Fix where the log ends. The clock is read first: what was committed before that is before the ends."""
    with open_link(url, credentials) as link:
        told = msgspec.convert(link.get("info"), BrokerInfo)
        views = [msgspec.convert(one, TopicView) for one in link.get("topics")["topics"]]
    chosen = [view for view in views if not only or view.name in only or view.name.startswith(DEAD_LETTERS)]
    return PinnedLog(url, told.store, told.now_ms, told.dedup_retention_ms, tuple(chosen), credentials)


def require_topics(only: tuple[str, ...], pinned: Iterable[PinnedLog]) -> None:
    """Each must be somewhere: a store of a cluster, or one of several brokers, may have had no message of it."""
    pinned = list(pinned)
    known = {view.name for broker in pinned for view in broker.topics}
    missing = [name for name in only if name not in known]
    if pinned and missing:
        where = " and ".join(broker.url for broker in pinned)
        raise NotFound(f"topics: the broker at {where} has no topic {', '.join(map(repr, missing))}", field="topics")


def has_delayed(url: str, credentials: Credentials) -> bool:
    """Whether there are messages that are committed and wait for their time."""
    import pyarrow as pa

    with open_link(url, credentials) as link, link.arrow("tables", "delayed", limit=1) as answer:
        return bool(pa.ipc.open_stream(answer.read()).read_all().num_rows)


def oldest_kept(broker: PinnedLog, topic: TopicView, queue: int) -> int | None:
    """When the first message that is still in a queue was stored; None if the queue is empty."""
    if topic.starts[queue] >= topic.ends[queue]:
        return None
    with open_link(broker.url, broker.credentials) as link:
        path = ("topics", topic.name, "queues", str(queue), "messages")
        # From the start that the queue has by now, which retention may have moved again.
        start = topic_view(link, topic.name).starts[queue]
        page = link.get(*path, offset=start, max=1)
    return int(page["messages"][0]["stored_at"]) if page["messages"] else None


# --- the queues that are read, by number ------------------------------------------------------------------------


class Consuming(Struct, frozen=True):
    """A consumer and its places: those in its own database (by store, topic, queue), and those at brokers (by URL)."""

    consumer: Consumer
    own: Mapping[tuple[str, str, int], int]
    known: Mapping[str, Mapping[str, GroupProgress]]

    @property
    def keeps_offset(self) -> bool:
        return bool(self.own)

    def at(self, broker: PinnedLog, topic: str, queue: int) -> ForGroup:
        """Whether it reads a queue, up to where it has settled it, the oldest that is unsettled, and its tags."""
        tags = list(self.consumer.tags) or None
        if not self._reads(broker, topic):
            return False, None, None, None
        if self.own:
            return True, self.own.get((broker.store, topic, queue), 0), None, tags
        progress = self.known.get(broker.url, {}).get(topic)
        if progress is None:
            return True, None, None, tags
        # A queue that came after we asked has been read by nobody when we did.
        return True, progress.offsets.get(queue, 0), progress.oldest_unsettled_at, tags

    def _reads(self, broker: PinnedLog, topic: str) -> bool:
        if self.consumer.topics:
            return topic in self.consumer.topics
        own = any(store == broker.store and topic == of for store, of, _ in self.own)
        return own or topic in self.known.get(broker.url, {})


class QueuePlace(Struct, frozen=True):
    number: int
    store: str
    topic: str
    queue: int
    must_have_row: bool
    by_group: tuple[ForGroup, ...]


class Places:
    """All queues of all brokers."""

    def __init__(self, pinned: list[PinnedLog], consuming: list[Consuming], settings: ReconcileSettings) -> None:
        self.consuming = consuming
        queues = [(broker, view, queue) for broker in pinned for view in broker.live for queue in range(view.queues)]
        self._places = [
            QueuePlace(
                number,
                broker.store,
                view.name,
                queue,
                view.name in settings.transactional,
                tuple(one.at(broker, view.name, queue) for one in consuming),
            )
            for number, (broker, view, queue) in enumerate(queues)
        ]

    def frame(self, spark: SparkSession, store: str) -> DataFrame:
        """What a row of the log has to know of its queue: few rows, sent to every task."""
        groups = range(len(self.consuming))
        columns = ["topic string", "queue int", "place int", "must_have_row boolean"]
        rows = [
            (one.topic, one.queue, one.number, one.must_have_row, *[field for of in one.by_group for field in of])
            for one in self._places
            if one.store == store
        ]
        return spark.createDataFrame(rows, ", ".join([*columns, *[_BY_GROUP.format(number) for number in groups]]))

    def names(self, spark: SparkSession) -> DataFrame:
        rows = [(one.number, one.topic, one.queue) for one in self._places]
        return spark.createDataFrame(rows, "place int, topic string, queue int")
