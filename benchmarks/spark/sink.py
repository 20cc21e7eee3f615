"""Rows written as transactional messages: durable, and visible at once, when the write returns."""

from __future__ import annotations

import time

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from benchmarks.spark.ground import Ground, best_of, fill
from tallystick.cli.doctor.disk import bare_fdatasync


def run(ground: Ground) -> None:
    rows = ground.count(400_000)
    with ground.broker("sink", retention="30d") as broker:
        frame = ground.random_rows(rows).persist(StorageLevel.MEMORY_ONLY)
        frame.count()
        _write(frame, broker.url, "warm")
        took = best_of(3, lambda: _write(frame, broker.url, "written"))
        frame.unpersist()
        bare = bare_fdatasync(ground.directory)
        ground.add(
            "sink, batch, 1,024-byte values",
            rows / took,
            "rows/s",
            50_000,
            ratio=rows / took * bare,
            ratio_of="one fdatasync a row",
        )
        fill(broker.url, "input", rows, 1_024)
        ground.add(
            "source to sink, stream, 1,024-byte values", _stream_rate(ground, broker.url, rows), "rows/s", 50_000
        )


def _write(frame: DataFrame, url: str, topic: str) -> float:
    began = time.perf_counter()
    frame.write.format("tallystick").option("url", url).option("topic", topic).mode("append").save()
    return time.perf_counter() - began


def _stream_rate(ground: Ground, url: str, rows: int) -> float:
    stream = ground.spark.readStream.format("tallystick").option("url", url).option("topic", "input")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", max(1_000, rows // 4))
    query = (
        stream.load()
        .select("key", "value")
        .writeStream.format("tallystick")
        .option("url", url)
        .option("topic", "output")
        .option("checkpointLocation", str(ground.directory / "checkpoint-sink"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [one for one in query.recentProgress if one.numInputRows]
    return float(rows / (sum(one.durationMs["triggerExecution"] for one in batches) / 1000))
