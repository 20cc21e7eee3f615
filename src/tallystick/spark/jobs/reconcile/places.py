"""The queues that are read, by number, and how far each consumer group is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from tallystick.spark.jobs.reconcile.brokers import Pinned, Progress
from tallystick.spark.jobs.reconcile.settings import Consumer, ReconcileSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BY_GROUP = "reads_{0} boolean, limit_{0} bigint, oldest_{0} bigint, tags_{0} array<string>"
ForGroup = tuple[bool, int | None, int | None, list[str] | None]


class Consuming(Struct, frozen=True):
    """A consumer and its places: those in its own database (by store, topic, queue), and those at brokers (by URL)."""

    consumer: Consumer
    own: Mapping[tuple[str, str, int], int]
    known: Mapping[str, Mapping[str, Progress]]

    @property
    def keeps_offset(self) -> bool:
        return bool(self.own)

    def at(self, broker: Pinned, topic: str, queue: int) -> ForGroup:
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

    def _reads(self, broker: Pinned, topic: str) -> bool:
        if self.consumer.topics:
            return topic in self.consumer.topics
        own = any(store == broker.store and topic == of for store, of, _ in self.own)
        return own or topic in self.known.get(broker.url, {})


class Place(Struct, frozen=True):
    number: int
    store: str
    topic: str
    queue: int
    must_have_row: bool
    by_group: tuple[ForGroup, ...]


class Places:
    """All queues of all brokers."""

    def __init__(self, pinned: list[Pinned], consuming: list[Consuming], settings: ReconcileSettings) -> None:
        self.consuming = consuming
        queues = [(broker, view, queue) for broker in pinned for view in broker.live for queue in range(view.queues)]
        self._places = [
            Place(
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
