"""What others than the writer see of topics, queues, channels, tokens: it moves when a unit is durable, never before.

The catalog is the writer's own and is ahead of the disk while a unit is under way. Here nothing is changed, only
replaced, so a thread beside the writer takes what it finds as a whole. A unit costs what it has touched.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tallystick.core.token_records import TokenRecord
from tallystick.core.wire import TopicView
from tallystick.store.kv.catalog import Catalog, QueueId, Topic, unknown_topic
from tallystick.store.protocol import Channel


class Shown(Struct, frozen=True):
    """A topic as the last durable unit left it."""

    topic: Topic
    starts: list[int]
    ends: list[int]

    def view(self) -> TopicView:
        topic = self.topic
        begins = [topic.begin(queue) for queue in range(topic.queues)]
        return TopicView(
            topic.name, topic.queues, topic.retention_ms, topic.created_at, [*self.starts], [*self.ends], begins
        )


def show(catalog: Catalog, topic: Topic) -> Shown:
    queues = range(topic.queues)
    return Shown(
        topic,
        [catalog.starts.get((topic.id, queue), 0) for queue in queues],
        [catalog.ends.get((topic.id, queue), 0) for queue in queues],
    )


def _by_name(tokens: dict[str, TokenRecord]) -> list[TokenRecord]:
    return [tokens[name] for name in sorted(tokens)]


class Visible:
    def __init__(self, catalog: Catalog) -> None:
        self._topics = {topic.name: show(catalog, topic) for topic in catalog.topics.values()}
        self._going: dict[QueueId, int] = {}
        self.channels: tuple[Channel, ...] = tuple(catalog.channels.values())
        self._tokens_of = catalog.tokens
        self.tokens = _by_name(catalog.tokens)

    def topics(self) -> list[Shown]:
        return list(self._topics.values())

    def topic(self, name: str) -> Shown | None:
        return self._topics.get(name)

    def known(self, name: str) -> Shown:
        shown = self._topics.get(name)
        if shown is None:
            raise unknown_topic(name)
        return shown

    def end(self, topic: Topic, queue: int) -> int:
        """One past the last durable offset. A queue that has just been made, and is not durable yet, is empty."""
        shown = self._topics.get(topic.name)
        if shown is None or shown.topic.id != topic.id or queue >= len(shown.ends):
            return topic.begin(queue)
        return shown.ends[queue]

    def kept_from(self, topic: Topic, queue: int) -> int:
        """The first offset that can be read. Asked after reading: what lies before may have been missed."""
        going = self._going.get((topic.id, queue), 0)  # first: it is let go after the start has moved
        shown = self._topics.get(topic.name)
        return going if shown is None or shown.topic.id != topic.id else max(going, shown.starts[queue])

    def expect(self, trimmed: dict[QueueId, int]) -> None:
        """A unit is about to be written that removes what lies before these offsets. An engine may hide that from
        readers before it is durable, when the start has not moved yet."""
        self._going = trimmed

    def follow(self, catalog: Catalog, touched: Iterable[int], deleted: Iterable[Topic]) -> None:
        """The unit is durable: what it has made of these topics, by id, is there for everyone."""
        for topic_id in touched:
            topic = catalog.topics_by_id.get(topic_id)
            if topic is not None:
                self._topics[topic.name] = show(catalog, topic)
        for gone in deleted:
            shown = self._topics.get(gone.name)
            if shown is not None and shown.topic.id == gone.id:  # and none of that name was made in the same unit
                del self._topics[gone.name]
        if len(self.channels) < len(catalog.channels):  # none ever goes
            self.channels = tuple(catalog.channels.values())
        if self._tokens_of is not catalog.tokens:
            self._tokens_of, self.tokens = catalog.tokens, _by_name(catalog.tokens)
        self._going = {}
