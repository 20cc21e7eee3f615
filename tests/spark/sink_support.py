"""What the sink's tests share: writers made by hand, tasks played through, and what a broker holds afterwards."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tallystick.core.errors import NotFound
from tallystick.link import Link
from tallystick.spark.sink.writer import BatchWriter, PreparedPart, StreamWriter

QUERY = "0e0b3a2c-7a53-4b3e-9f5e-0a4f4f1c2d3e"
OTHER_QUERY = "7d2f1b9a-1111-4222-8333-944445555666"
KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "headers": MapType(StringType(), StringType()),
    "counts": MapType(StringType(), LongType()),
}


def schema(**columns: str) -> StructType:
    return StructType([StructField(name, KINDS[kind]) for name, kind in columns.items()])


VALUES = schema(value="string")


def values(*texts: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(texts, pa.string())], names=["value"])


def numbers(first: int, end: int) -> pa.RecordBatch:
    return values(*map(str, range(first, end)))


@contextlib.contextmanager
def as_task(query: str = QUERY, batch: int = 0) -> Iterator[None]:
    """What a task of a streaming query is told by its driver, in this process."""
    told = TaskContext._getOrCreate()
    told._localProperties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


class Play:
    """A streaming query's batches, played by hand: tasks with copies of the writer, then a new writer on the driver,
    as Spark does it."""

    def __init__(self, url: str, topic: str, query: str = QUERY, columns: StructType = VALUES, **options: str) -> None:
        self._options = {"url": url, "topic": topic, **options}
        self._query, self._columns = query, columns

    def writer(self) -> StreamWriter:
        return StreamWriter(self._columns, self._options, overwrite=False)

    def task(self, batch: int, *batches: pa.RecordBatch) -> PreparedPart:
        with as_task(self._query, batch):
            return pickle.loads(pickle.dumps(self.writer())).write(iter(batches))

    def tasks(self, batch: int, splits: Iterable[pa.RecordBatch]) -> list[PreparedPart]:
        return [self.task(batch, split) for split in splits]

    def commit(self, batch: int, messages: list[Any]) -> None:
        self.writer().commit(pickle.loads(pickle.dumps(messages)), batch)

    def abort(self, batch: int, messages: list[Any]) -> None:
        self.writer().abort(messages, batch)

    def run(self, batch: int, *splits: pa.RecordBatch) -> list[PreparedPart]:
        messages = self.tasks(batch, splits)
        self.commit(batch, messages)
        return messages


def batch_writer(url: str, columns: StructType = VALUES, **options: str) -> BatchWriter:
    return BatchWriter(columns, {"url": url, **options}, overwrite=False)


# --- what a broker holds ---------------------------------------------------------------------------------------------


def rows(url: str, topic: str) -> list[dict[str, Any]]:
    """Every visible message of a topic, queue by queue; none if there is no such topic."""
    found: list[dict[str, Any]] = []
    with Link(url, patience=10) as link:
        try:
            ends = link.get("topics", topic)["ends"]
        except NotFound:
            return []
        for queue, end in enumerate(ends):
            with link.arrow("topics", topic, "queues", str(queue), "messages", offset=0, end=end) as answer:
                found += pa.ipc.open_stream(answer).read_all().to_pylist()
    return found


def content(url: str, topic: str) -> Counter[str]:
    """The values of a topic, each with the number of times it is there."""
    return Counter(row["value"].decode() for row in rows(url, topic))


def expected(first: int, end: int) -> Counter[str]:
    return Counter(map(str, range(first, end)))


def difference(url: str, topic: str, wanted: Counter[str]) -> dict[str, list[str]]:
    """The checker of every fault test: rows in against rows out, as multisets."""
    there = content(url, topic)
    return {
        "lost": sorted((wanted - there).elements()),
        "duplicated": sorted(value for value, count in there.items() if count > max(1, wanted[value])),
        "strange": sorted(there.keys() - wanted.keys()),
    }


NOTHING: dict[str, list[str]] = {"lost": [], "duplicated": [], "strange": []}


def last(url: str, app: str) -> int | None:
    """The last version of an application in the ledger."""
    with Link(url) as link:
        try:
            return int(link.get("ledger", app)["version"])
        except NotFound:
            return None
