"""Those that are compared: how Spark reads a topic of theirs and writes one, and what their broker is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from benchmarks.spark.ground import QUEUES
from benchmarks.spark.kafka.server import Topics
from tallystick.link import Link
from tallystick.local import LocalService

HERE = "here"
DEFAULTS, TUNED, SYNCED = "Kafka, defaults", "Kafka, tuned consumer", "Kafka, fsync before ack, 1 MiB batches"
MIB = 1024 * 1024


class Side(Protocol):
    """`spark` is any of Spark's four readers and writers: of a batch, of a stream. `pid` is the broker's."""

    name: str
    pid: int

    def reader(self, spark: Any, topic: str) -> Any: ...
    def writer(self, spark: Any, topic: str) -> Any: ...
    def create(self, topic: str) -> None: ...
    def count(self, topic: str) -> int: ...


class Here:
    name = HERE

    def __init__(self, broker: LocalService) -> None:
        self.pid, self.url = broker.pid, broker.url

    def reader(self, spark: Any, topic: str) -> Any:
        return self.writer(spark, topic).option("startingOffsets", "earliest")

    def writer(self, spark: Any, topic: str) -> Any:
        return spark.format("tallystick").option("url", self.url).option("topic", topic)

    def create(self, topic: str) -> None:
        with Link(self.url) as link:
            link.put("topics", topic, queues=QUEUES)

    def count(self, topic: str) -> int:
        with Link(self.url) as link:
            view = link.get("topics", topic)
        return sum(view["ends"]) - sum(view["starts"])


class Kafka:
    """Kafka's connector, with settings of a consumer, of a producer and of topics that differ from the defaults."""

    def __init__(
        self, name: str, pid: int, address: str, topics: Topics, client: Mapping[str, int | str], **topic: str
    ) -> None:
        self.name, self.pid, self._address, self._topics = name, pid, address, topics
        self._client, self._topic = client, topic

    def reader(self, spark: Any, topic: str) -> Any:
        return self._options(spark).option("subscribe", topic).option("startingOffsets", "earliest")

    def writer(self, spark: Any, topic: str) -> Any:
        return self._options(spark).option("topic", topic)

    def _options(self, spark: Any) -> Any:
        settings = {"bootstrap.servers": self._address, **self._client}
        return spark.format("kafka").options(**{f"kafka.{name}": value for name, value in settings.items()})

    def create(self, topic: str) -> None:
        self._topics.create(topic, **self._topic)

    def count(self, topic: str) -> int:
        return self._topics.count(topic)


def kafka_sides(server: Any, topics: Topics) -> dict[str, Side]:
    """One Kafka, used in three ways."""
    tuned = {"fetch.max.bytes": 64 * MIB, "max.partition.fetch.bytes": 16 * MIB, "max.poll.records": 10_000}
    # A batch has room for as much as a topic takes in one, and waits a moment for it to come together.
    large = {"acks": "all", "batch.size": MIB, "linger.ms": 100, "max.request.size": 4 * MIB}
    return {
        DEFAULTS: Kafka(DEFAULTS, server.pid, server.address, topics, {}),
        TUNED: Kafka(TUNED, server.pid, server.address, topics, tuned),
        SYNCED: Kafka(SYNCED, server.pid, server.address, topics, large, flush_messages="1"),
    }
