"""Those that are compared: how Spark reads a topic of theirs and writes one, and what their broker is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from benchmarks.spark.ground import QUEUES
from benchmarks.spark.kafka.server import KafkaServer, Topics
from tallystick.link import Link
from tallystick.local import LocalBroker

HERE, PARQUET = "here", "Parquet"
DEFAULTS = "Kafka"  # answers before anything is on the disk
TUNED = "Kafka, larger fetches"
SYNCED = "Kafka, fsync"  # before it answers; batches of 1 MiB
MIB = 1024 * 1024


class Side(Protocol):
    """`spark` is any of Spark's readers and writers: of a batch, of a stream. `pid` is the broker's."""

    name: str
    pid: int
    address: str

    def reader(self, spark: Any, topic: str) -> Any: ...
    def writer(self, spark: Any, topic: str) -> Any: ...
    def create(self, topic: str) -> None: ...
    def count(self, topic: str) -> int: ...


Sides = dict[str, Side]


class Here:
    name = HERE

    def __init__(self, broker: LocalBroker) -> None:
        self.pid, self.address = broker.pid, broker.url

    def reader(self, spark: Any, topic: str) -> Any:
        return self.writer(spark, topic).option("startingOffsets", "earliest")

    def writer(self, spark: Any, topic: str) -> Any:
        return spark.format("tallystick").option("url", self.address).option("topic", topic)

    def create(self, topic: str) -> None:
        with Link(self.address) as link:
            link.put("topics", topic, queues=QUEUES)

    def count(self, topic: str) -> int:
        with Link(self.address) as link:
            view = link.get("topics", topic)
        return int(sum(view["ends"]) - sum(view["starts"]))


class Kafka:
    """Kafka's connector; `client` and `topic` are settings of its clients and topics that differ from the defaults."""

    def __init__(
        self, name: str, server: KafkaServer, topics: Topics, client: Mapping[str, object], **topic: str
    ) -> None:
        self.name, self.pid, self.address = name, server.pid, server.address
        self._topics, self._client, self._topic = topics, client, topic

    def reader(self, spark: Any, topic: str) -> Any:
        return self._options(spark).option("subscribe", topic).option("startingOffsets", "earliest")

    def writer(self, spark: Any, topic: str) -> Any:
        return self._options(spark).option("topic", topic)

    def _options(self, spark: Any) -> Any:
        settings = {"bootstrap.servers": self.address, **self._client}
        return spark.format("kafka").options(**{f"kafka.{name}": value for name, value in settings.items()})

    def create(self, topic: str) -> None:
        self._topics.create(topic, **self._topic)

    def count(self, topic: str) -> int:
        return self._topics.count(topic)


def kafka_sides(server: KafkaServer, topics: Topics) -> Sides:
    """One Kafka, used in three ways."""
    fetches = {"fetch.max.bytes": 64 * MIB, "max.partition.fetch.bytes": 16 * MIB, "max.poll.records": 10_000}
    # A batch has room for as much as a topic takes in one, and waits a moment for it to come together.
    batches = {"acks": "all", "batch.size": MIB, "linger.ms": 100, "max.request.size": 4 * MIB}
    return {
        DEFAULTS: Kafka(DEFAULTS, server, topics, {}),
        TUNED: Kafka(TUNED, server, topics, fetches),
        SYNCED: Kafka(SYNCED, server, topics, batches, flush_messages="1"),
    }
