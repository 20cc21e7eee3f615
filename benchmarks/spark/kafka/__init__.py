"""Beside Kafka and Spark's own connector for it, in the same Spark: the same rows, by turns, on the same disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from pyspark import StorageLevel

from benchmarks.spark.ground import Ground, fill
from benchmarks.spark.kafka import maven
from benchmarks.spark.kafka.figures import compare
from benchmarks.spark.kafka.server import KafkaServer, Topics
from benchmarks.spark.kafka.sides import DEFAULTS, HERE, PARQUET, SYNCED, TUNED, Here, Sides, kafka_sides
from benchmarks.spark.kafka.steps import Steps

PLACE = "beside-kafka"


def run(ground: Ground) -> None:
    rows = ground.count(1_000_000)
    steps = Steps(ground, rows)
    with _sides(ground) as sides:
        _reading(ground, sides, steps, rows)
        _writing(ground, sides, steps, rows)
        _topic_to_topic(ground, sides, steps, rows)


@contextmanager
def _sides(ground: Ground) -> Iterator[Sides]:
    """One broker of each kind for all steps: Kafka's takes a while until Java has compiled it."""
    with (
        ground.broker(f"{PLACE}/here", retention="30d") as broker,
        KafkaServer(ground.directory / PLACE / "kafka", maven.jars().server) as server,
        closing(Topics(ground.spark, server.address)) as topics,
    ):
        yield {HERE: Here(broker), **kafka_sides(server, topics)}
    shutil.rmtree(ground.directory / PLACE)  # tens of gigabytes


def _reading(ground: Ground, sides: Sides, steps: Steps, rows: int) -> None:
    _read_and_stream(ground, sides, steps, rows, 1_024, {DEFAULTS: 1.2, PARQUET: 0.5}, 1.2, {DEFAULTS: 1.0})
    _read_and_stream(ground, sides, steps, rows, 200)


def _read_and_stream(
    ground: Ground,
    sides: Sides,
    steps: Steps,
    rows: int,
    size: int,
    batch_ratios: dict[str, float] | None = None,
    broker_seconds: float | None = None,
    stream_ratios: dict[str, float] | None = None,
) -> None:
    topic, path = f"rows-{size}", str(ground.directory / PLACE / f"rows-{size}.parquet")
    _fill(ground, sides, topic, rows, size)
    sides[HERE].reader(ground.spark.read, topic).load().write.parquet(path)
    ways = {name: partial(steps.read, sides[name], topic) for name in (HERE, DEFAULTS, TUNED)}
    ways[PARQUET] = partial(steps.read_parquet, path)
    compare(ground, f"batch read, {size:,} B", ways, batch_ratios, broker_seconds)
    ways = {name: partial(steps.stream, sides[name], topic) for name in (HERE, DEFAULTS)}
    compare(ground, f"stream, {size:,} B", ways, stream_ratios)


def _writing(ground: Ground, sides: Sides, steps: Steps, rows: int) -> None:
    frame = ground.random_rows(rows).persist(StorageLevel.MEMORY_ONLY)
    frame.count()
    ways = {name: partial(steps.write, sides[name], frame) for name in (HERE, DEFAULTS, SYNCED)}
    compare(ground, "batch write, 1,024 B", ways, {SYNCED: 1.0}, 4.0)
    frame.unpersist()


def _topic_to_topic(ground: Ground, sides: Sides, steps: Steps, rows: int) -> None:
    _fill(ground, sides, "input", rows, 1_024)
    ways = {name: partial(steps.topic_to_topic, sides[name], "input") for name in (HERE, DEFAULTS, SYNCED)}
    compare(ground, "topic to topic, 1,024 B", ways, {SYNCED: 1.0})


def _fill(ground: Ground, sides: Sides, topic: str, rows: int, size: int) -> None:
    """Random bytes into our topic, and from there into Kafka's."""
    here, kafka = sides[HERE], sides[DEFAULTS]
    fill(here.address, topic, rows, size)
    kafka.create(topic)
    copied = here.reader(ground.spark.read, topic).load().select("key", "value")
    kafka.writer(copied.write, topic).mode("append").save()
