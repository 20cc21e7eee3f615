"""What is done by each side in its turn, and how long it takes from the call to its end, with all that Spark adds."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.processes import processor_seconds
from benchmarks.rounds import Turn
from benchmarks.spark.ground import Ground, seconds_to_noop
from benchmarks.spark.kafka.sides import Side

BATCHES = 4


class Steps:
    """Each method measures once; those that write make a topic of their own each time."""

    def __init__(self, ground: Ground, rows: int) -> None:
        self._ground, self._rows, self._spark = ground, rows, ground.spark
        java: Any = ground.spark.sparkContext._jvm
        self._spark_pid = int(java.java.lang.ProcessHandle.current().pid())
        self._numbers = itertools.count()

    def read_parquet(self, path: str) -> Turn:
        return self._timed(None, lambda: seconds_to_noop(self._spark.read.parquet(path)))

    def read(self, side: Side, topic: str) -> Turn:
        return self._timed(side, lambda: seconds_to_noop(side.reader(self._spark.read, topic).load()))

    def stream(self, side: Side, topic: str) -> Turn:
        return self._timed(side, lambda: self._drained(self._stream(side, topic).writeStream.format("noop")))

    def write(self, side: Side, frame: DataFrame) -> Turn:
        topic = self._new_topic(side)
        turn = self._timed(side, lambda: side.writer(frame.write, topic).mode("append").save())
        return self._checked(side, topic, turn)

    def topic_to_topic(self, side: Side, topic: str) -> Turn:
        output = self._new_topic(side)
        rows = self._stream(side, topic).select("key", "value")
        turn = self._timed(side, lambda: self._drained(side.writer(rows.writeStream, output)))
        return self._checked(side, output, turn)

    def _timed(self, side: Side | None, work: Callable[[], object]) -> Turn:
        os.sync()  # what the one before has left to the disk is not paid by this one
        before = self._spent(side)
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        spark, broker = ((now - then) / self._rows for now, then in zip(self._spent(side), before, strict=True))
        return Turn(self._rows / took, took / self._rows, spark, broker=broker)

    def _spent(self, side: Side | None) -> tuple[float, float]:
        """The processor time of Spark, its Python workers included, and of the side's broker."""
        return processor_seconds(self._spark_pid), 0.0 if side is None else processor_seconds(side.pid)

    def _stream(self, side: Side, topic: str) -> DataFrame:
        limit = -(-self._rows // BATCHES)
        frame: DataFrame = side.reader(self._spark.readStream, topic).option("maxOffsetsPerTrigger", limit).load()
        return frame

    def _drained(self, writer: Any) -> None:
        """Run a stream until it has seen all there is."""
        checkpoint = self._ground.directory / f"checkpoint-kafka-{next(self._numbers)}"
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        seen = sum(one.numInputRows for one in query.recentProgress)
        if seen != self._rows:
            raise ValueError(f"the stream saw {seen} of {self._rows} rows")

    def _new_topic(self, side: Side) -> str:
        topic = f"written-{next(self._numbers)}"
        side.create(topic)
        return topic

    def _checked(self, side: Side, topic: str, turn: Turn) -> Turn:
        if side.count(topic) != self._rows:
            raise ValueError(f"{side.name} holds {side.count(topic)} of {self._rows} rows")
        return turn
