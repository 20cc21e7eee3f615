"""What the sections stand on: brokers of their own, topics filled with random bytes, rows timed through Spark."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.servers import Server

from benchmarks.report import Figure, Report
from tallystick.core.ids import new_gid
from tallystick.link import Link
from tallystick.local import LocalBroker

ROWS_A_REQUEST = 4_000
QUEUES = 4


class Ground:
    """`rounds`: how often those are measured that are compared by turns."""

    def __init__(
        self, directory: Path, report: Report, scale: float, rounds: int, spark: SparkSession, server: Server
    ) -> None:
        self.directory, self.report, self.scale, self.rounds = directory, report, scale, rounds
        self.spark, self.server = spark, server

    def count(self, full: int, least: int = 20_000) -> int:
        return max(least, int(full * self.scale))

    def broker(self, name: str, **settings: object) -> LocalBroker:
        return LocalBroker(self.directory / name, min_free_bytes=0, log_level="warning", **settings)

    def database_url(self, database: str) -> str:
        return str(self.server.url("postgresql", database).render_as_string(hide_password=False))

    def source(self, url: str, topic: str) -> Any:
        return self.spark.read.format("tallystick").option("url", url).option("topic", topic)

    def random_rows(self, rows: int) -> DataFrame:
        """1,024 bytes each that do not compress: 32 digests of 32 bytes."""
        digests = [F.unhex(F.sha2(F.concat_ws("-", "id", F.lit(number)), 256)) for number in range(32)]
        return self.spark.range(0, rows, 1, QUEUES).select(
            F.concat(*digests).alias("value"), (F.col("id") % 997).cast("string").alias("key")
        )

    def add(self, name: str, value: float, unit: str, target: float | None = None, **rest: Any) -> None:
        self.report.add(Figure(name, value, unit, target, **rest))


def fill(url: str, topic: str, rows: int, size: int) -> None:
    """Random values, so that nothing compresses; keys spread over the queues."""
    with Link(url, timeout=120, patience=60) as link:
        link.put("topics", topic, queues=QUEUES)
        part = new_gid()
        for index, start in enumerate(range(0, rows, ROWS_A_REQUEST)):
            link.post_arrow("parts", part, body=_stream(topic, min(ROWS_A_REQUEST, rows - start), size), index=index)
        link.post("ledger", f"bench-{part}", "0", parts=[{"part": part, "count": rows}])


def _stream(topic: str, rows: int, size: int) -> bytes:
    content = os.urandom(rows * size)
    table = pa.table(
        {
            "topic": pa.array([topic] * rows),
            "value": pa.array([content[at : at + size] for at in range(0, len(content), size)], pa.binary()),
            "key": pa.array([str(number % 997) for number in range(rows)]),
        }
    )
    made = io.BytesIO()
    with pa.ipc.new_stream(made, table.schema) as writer:
        writer.write_table(table)
    return made.getvalue()


def seconds_to_noop(frame: DataFrame) -> float:
    """How long Spark takes to read every row of a frame."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def best_of(tries: int, measure: Any) -> float:
    """The shortest of several times: what is left when nothing else disturbed."""
    return min(float(measure()) for _ in range(tries))
