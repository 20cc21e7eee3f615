"""Topics read by Spark, in batch and as a stream, beside Spark's own Parquet reader on the same rows."""

from __future__ import annotations

import time

from benchmarks.processes import processor_seconds
from benchmarks.spark.ground import Ground, best_of, fill, seconds_to_noop

IDLE_SECONDS = 20.0


def run(ground: Ground) -> None:
    with ground.broker("source", retention="30d") as broker:
        for size, full, batch_target, stream_target in (
            (1_024, 1_000_000, 200_000, 150_000),
            (200, 2_000_000, 300_000, None),
        ):
            rows = ground.count(full)
            topic = f"rows-{size}"
            fill(broker.url, topic, rows, size)
            seconds_to_noop(ground.source(broker.url, topic).load())
            took = best_of(3, lambda topic=topic: seconds_to_noop(ground.source(broker.url, topic).load()))
            parquet = _parquet(ground, broker.url, topic)
            name = f"source, batch, {size}-byte messages"
            ground.add(
                name, rows / took, "rows/s", batch_target, ratio=parquet / took, ratio_of="Spark's Parquet reader"
            )
            rate = _stream_rate(ground, broker.url, topic, rows)
            ground.add(f"source, stream, {size}-byte messages", rate, "rows/s", stream_target)


def _parquet(ground: Ground, url: str, topic: str) -> float:
    """Seconds that Spark's own reader takes for the same rows, the files being in memory."""
    path = str(ground.directory / f"{topic}.parquet")
    ground.source(url, topic).load().write.mode("overwrite").parquet(path)
    return best_of(3, lambda: seconds_to_noop(ground.spark.read.parquet(path)))


def _stream_rate(ground: Ground, url: str, topic: str, rows: int) -> float:
    """Rows a second over all batches of a run, with all that a batch costs."""
    stream = ground.spark.readStream.format("tallystick").option("url", url).option("topic", topic)
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", max(1_000, rows // 4))
    checkpoint = str(ground.directory / f"checkpoint-{topic}")
    query = (
        stream.load()
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [one for one in query.recentProgress if one.numInputRows]
    seen = sum(one.numInputRows for one in batches)
    if seen != rows:
        raise ValueError(f"the stream saw {seen} of {rows} rows")
    return seen / (sum(one.durationMs["triggerExecution"] for one in batches) / 1000)


def run_idle(ground: Ground) -> None:
    """What a query with nothing to read costs the broker."""
    with ground.broker("idle") as broker:
        fill(broker.url, "quiet", 1_000, 100)
        stream = ground.spark.readStream.format("tallystick").option("url", broker.url).option("topic", "quiet")
        target = str(ground.directory / "checkpoint-idle")
        query = stream.load().writeStream.format("noop").option("checkpointLocation", target).start()
        try:
            time.sleep(5)
            before = processor_seconds(broker.pid)
            time.sleep(IDLE_SECONDS)
            share = (processor_seconds(broker.pid) - before) / IDLE_SECONDS * 100
        finally:
            query.stop()
        ground.add("broker, one idle query, default trigger", share, "% of a core", 2, at_most=True)
