"""Beside Kafka and Spark's own connector for it, in the same Spark: the same rows, by turns, on the same disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyspark import StorageLevel

from benchmarks.spark.ground import Ground, fill
from benchmarks.spark.kafka import maven
from benchmarks.spark.kafka.figures import compare
from benchmarks.spark.kafka.server import KafkaServer, Topics
from benchmarks.spark.kafka.sides import DEFAULTS, HERE, SYNCED, TUNED, Here, Side, kafka_sides
from benchmarks.spark.kafka.steps import Steps

PARQUET = "Parquet"
Sides = dict[str, Side]


def run(ground: Ground) -> None:
    rows = ground.count(1_000_000)
    steps = Steps(ground, rows)
    for stage in (_reading, _writing, _topic_to_topic):
        with _sides(ground) as sides:
            stage(ground, sides, steps, rows)


@contextmanager
def _sides(ground: Ground) -> Iterator[Sides]:
    """Brokers of their own for each stage, so that none of them pays for what the stage before has left."""
    place = ground.directory / "beside-kafka"
    with (
        ground.broker("beside-kafka/here", retention="30d") as broker,
        KafkaServer(place / "kafka", maven.jars().server) as server,
        closing(Topics(ground.spark, server.address)) as topics,
    ):
        yield {HERE: Here(broker), **kafka_sides(server, topics)}
    shutil.rmtree(place)


def _reading(ground: Ground, sides: Sides, steps: Steps, rows: int) -> None:
    for size in (1_024, 200):
        topic, path = f"rows-{size}", str(ground.directory / f"beside-kafka/rows-{size}.parquet")
        _fill(ground, sides, topic, rows, size)
        sides[HERE].reader(ground.spark.read, topic).load().write.parquet(path)
        full = size == 1_024
        compare(
            ground.report,
            f"batch read, {size:,} bytes",
            {name: lambda name=name: steps.read(sides[name], topic) for name in (HERE, DEFAULTS, TUNED)}
            | {PARQUET: lambda: steps.read_parquet(path)},
            {DEFAULTS: 1.2, PARQUET: 0.5} if full else None,
            1.2 if full else None,
        )
        compare(
            ground.report,
            f"stream, {size:,} bytes, wall time",
            {name: lambda name=name: steps.stream(sides[name], topic) for name in (HERE, DEFAULTS)},
            {DEFAULTS: 1.0} if full else None,
        )


def _writing(ground: Ground, sides: Sides, steps: Steps, rows: int) -> None:
    frame = ground.random_rows(rows).persist(StorageLevel.MEMORY_ONLY)
    frame.count()
    ways = {name: lambda name=name: steps.write(sides[name], frame) for name in (HERE, DEFAULTS, SYNCED)}
    compare(ground.report, "batch write, 1,024 bytes", ways, {SYNCED: 1.0}, 4.0)
    frame.unpersist()


def _topic_to_topic(ground: Ground, sides: Sides, steps: Steps, rows: int) -> None:
    _fill(ground, sides, "input", rows, 1_024)
    ways = {name: lambda name=name: steps.topic_to_topic(sides[name], "input") for name in (HERE, DEFAULTS, SYNCED)}
    compare(ground.report, "topic to topic, 1,024 bytes, wall time", ways, {SYNCED: 1.0})


def _fill(ground: Ground, sides: Sides, topic: str, rows: int, size: int) -> None:
    """Random bytes into our topic, and from there into Kafka's."""
    here: Here = sides[HERE]
    fill(here.url, topic, rows, size)
    sides[DEFAULTS].create(topic)
    copied = here.reader(ground.spark.read, topic).load().select("key", "value")
    sides[DEFAULTS].writer(copied.write, topic).mode("append").save()
