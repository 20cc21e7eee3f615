"""Formats for fault tests, found by Spark's workers as a module: a stream of numbers, and a sink that breaks on demand.

A fault is a file in a directory, named by the point where it strikes; its content says what happens there:

    raise           raise an error
    kill PID        kill -9 that process, and wait to be killed with it
    wait            tell that the point is reached (`<point>.reached`) and go on once `<point>.go` is there

Whoever renames the file first carries it out: a fault strikes once, in whichever process comes there first.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StringType, StructField, StructType

from tallystick.core.ids import new_gid
from tallystick.link import Link
from tallystick.spark.format import TallystickSource
from tallystick.spark.sink import parts
from tallystick.spark.sink.writer import PreparedPart, StreamWriter

PATIENCE_SECONDS = 150.0


class Faults:
    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def strike(self, point: str, batch: int | str | None = None) -> None:
        """Carry the fault of this point out, if one is armed: for any batch (`commit`) or for one (`commit.3`)."""
        for name in (point, f"{point}.{batch}"):
            try:
                claimed = (self._directory / name).rename(self._directory / f"{name}.{new_gid()}")
            except FileNotFoundError:
                continue
            self._carry_out(name, claimed.read_text())

    def _carry_out(self, name: str, fault: str) -> None:
        (self._directory / f"{name}.reached").touch()
        if fault == "raise":
            raise RuntimeError(f"a fault at {name}")
        if fault == "wait":
            self._wait_for(f"{name}.go")
        elif fault.startswith("kill "):
            os.kill(int(fault.removeprefix("kill ")), signal.SIGKILL)
            time.sleep(PATIENCE_SECONDS)

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (self._directory / name).exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def record(self, what: str, batch: int, messages: list[Any]) -> None:
        told = [None if one is None else [one.part, one.count] for one in messages]
        with (self._directory / "log").open("a") as log:
            log.write(json.dumps([what, batch, told]) + "\n")


class FaultyWriter(StreamWriter):
    """The sink as it is, with points where faults strike; few rows a request, so that there are several."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        own = dict(options)
        self.faults = Faults(own.pop("faults"))
        super().__init__(schema, own, overwrite)

    def write(self, iterator: Iterator[Any]) -> PreparedPart:
        from pyspark import TaskContext

        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        original = Link.post_arrow

        def post(link: Link, *path: str, body: bytes, **query: Any) -> Any:
            answer = original(link, *path, body=body, **query)
            if query["index"] == 1:
                self.faults.strike("sending", batch)
            return answer

        with mock.patch.object(Link, "post_arrow", post), mock.patch.object(parts, "REQUEST_ROWS", 4):
            message = super().write(iterator)
        self.faults.strike("sent", batch)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.faults.record("commit", batchId, messages)
        self.faults.strike("commit", batchId)
        super().commit(messages, batchId)
        self.faults.strike("committed", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.faults.record("abort", batchId, messages)
        super().abort(messages, batchId)


class WriterWithoutLedger(FaultyWriter):
    """The seeded bug: parts are committed atomically, but under an id that no replay knows."""

    def write(self, iterator: Iterator[Any]) -> PreparedPart:
        message = super().write(iterator)
        return PreparedPart(message.app, "", message.part, message.count)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        app = new_gid()
        super().commit([PreparedPart(app, "", one.part, one.count) for one in messages if one is not None], batchId)


class FaultySink(TallystickSource):
    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return FaultyWriter(schema, self.options, overwrite)


class SinkWithoutLedger(TallystickSource):
    @classmethod
    def name(cls) -> str:
        return "forgetful"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return WriterWithoutLedger(schema, self.options, overwrite)


# --- a stream of numbers ---------------------------------------------------------------------------------------------


class Span(InputPartition):
    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end


class NumbersReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """0, 1, 2, ...: `perBatch` of them a batch in `splits` tasks, until `total`, or until there is a file `finish`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._per_batch, self._splits = int(options["perBatch"]), int(options["splits"])
        self._total = int(options["total"])
        self._finish = Path(options["faults"]) / "finish"

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """The end is fixed already."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if self._finish.exists():
            return start
        return {"at": min(self._total, start["at"] + self._per_batch)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        first, count = start["at"], end["at"] - start["at"]
        cuts = [first + count * number // self._splits for number in range(self._splits + 1)]
        return [Span(cuts[number], cuts[number + 1]) for number in range(self._splits)]

    def read(self, partition: Span) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([str(n) for n in range(partition.first, partition.end)])], names=["value"])


class Numbers(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> StructType:
        return StructType([StructField("value", StringType())])

    def streamReader(self, schema: StructType) -> NumbersReader:
        return NumbersReader(self.options)


FORMATS = (FaultySink, SinkWithoutLedger, Numbers)
