"""Rows of an SQLite file, read by Python's own driver: no JDBC driver is needed for it, and no pandas."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

FORMAT = "tallystick-sqlite"
BATCH_ROWS = 20_000
BUSY_SECONDS = 30.0


class SqliteRows(DataSource):
    """Options: `file` and `query`. The schema is given to `load()`; the query's columns come in its order."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        return SqliteReader(self.options["file"], self.options["query"], schema)


class SqliteReader(DataSourceReader):
    """One query is one snapshot, so it is read by one task."""

    def __init__(self, file: str, query: str, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._file, self._query = file, query
        self._arrow = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        # Opened for reading only, so that a path that is wrong does not make an empty database.
        opened = sqlite3.connect(f"file:{self._file}?mode=ro", timeout=BUSY_SECONDS, uri=True)
        with closing(opened) as connection, closing(connection.execute(self._query)) as cursor:
            while rows := cursor.fetchmany(BATCH_ROWS):
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, field.type) for column, field in zip(columns, self._arrow, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=self._arrow)
