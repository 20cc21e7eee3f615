"""A task's work: a range of a queue becomes Parquet files, one for each day (or more, if a day is much).

Nobody sees them until a manifest names them, so a task that failed or was run twice leaves only files to sweep up.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tallystick.durable import make_directory, sync_directory
from tallystick.spark.archive.layout import SCHEMA
from tallystick.spark.archive.manifest import ArchivedFile, writing_to
from tallystick.spark.source.ranges import Range

DAY_MS = 86_400_000
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 * 1024 * 1024  # before compression; what a task holds in memory, twice at most
FILE_BYTES = 512 * 1024 * 1024  # before compression


def write_range(data: Path, run: str, piece: Range, batches: Iterable[pa.RecordBatch]) -> list[ArchivedFile]:
    """Write the batches of a range below the data directory; durable when this returns."""
    with writing_to(data):
        return _written(data, run, piece, batches)


def _written(data: Path, run: str, piece: Range, batches: Iterable[pa.RecordBatch]) -> list[ArchivedFile]:
    done: list[ArchivedFile] = []
    current: _File | None = None
    try:
        for day, batch in by_day(batches):
            if current is None or current.day != day or current.bytes >= FILE_BYTES:
                if current is not None:
                    done.append(current.close())
                current = _File(data, run, piece, day, batch)
            current.add(batch)
        if current is not None:
            done.append(current.close())
    except BaseException:
        if current is not None:
            current.give_up()
        raise
    return done


def by_day(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batches, cut where the day of storing (UTC) changes."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        times = batch.column("timestamp").cast(pa.int64())
        days = pc.divide(times, DAY_MS)
        start = 0
        for end in pc.run_end_encode(days).run_ends.to_pylist():
            yield _day(days[start].as_py()), batch.slice(start, end - start)
            start = end


def _day(days: int) -> str:
    return datetime.fromtimestamp(days * 86_400, UTC).date().isoformat()


class _File:
    """A Parquet file in the making."""

    def __init__(self, data: Path, run: str, piece: Range, day: str, first: pa.RecordBatch) -> None:
        self.day, self.bytes = day, 0
        self._queue = piece.queue
        self._start = self._end = first.column("offset")[0].as_py()
        self._first_ms, self._last_ms = _milliseconds(first, 0), 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._waiting_rows = 0
        # A name of its own for every attempt: two of them never write into one file.
        name = f"{piece.queue:03d}-{self._start:020d}-{run}-{secrets.token_hex(4)}.parquet"
        self._path = f"topic={piece.topic}/day={day}/{name}"
        self._where = data / self._path
        make_directory(self._where.parent)
        self._file = self._where.open("xb")
        self._writer = _writer(self._file)

    def add(self, batch: pa.RecordBatch) -> None:
        size = batch.nbytes
        self._waiting.append(batch)
        self._waiting_bytes += size
        self._waiting_rows += batch.num_rows
        self.bytes += size
        self._end += batch.num_rows
        bounds = pc.min_max(batch.column("timestamp").cast(pa.int64())).as_py()
        self._first_ms, self._last_ms = min(self._first_ms, bounds["min"]), max(self._last_ms, bounds["max"])
        if self._waiting_bytes >= ROW_GROUP_BYTES or self._waiting_rows >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> ArchivedFile:
        self._flush()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        sync_directory(self._where.parent)
        return ArchivedFile(
            path=self._path,
            day=self.day,
            queue=self._queue,
            start=self._start,
            end=self._end,
            bytes=size,
            first_ms=self._first_ms,
            last_ms=self._last_ms,
        )

    def give_up(self) -> None:
        """Close what is open; the file is no Parquet file then, and no manifest will name it."""
        self._file.close()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, SCHEMA)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0


def _milliseconds(batch: pa.RecordBatch, row: int) -> int:
    found: int = batch.column("timestamp")[row].cast(pa.int64()).as_py()
    return found


def _writer(file: Any) -> Any:
    plain = {"offset": "DELTA_BINARY_PACKED", "sequence": "DELTA_BINARY_PACKED", "value": "PLAIN"}
    return pq.ParquetWriter(
        file,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in SCHEMA.names if name not in plain and name != "headers"],
        column_encoding=plain,
        write_page_checksum=True,
        write_statistics=[name for name in SCHEMA.names if name not in ("value", "headers")],
    )
