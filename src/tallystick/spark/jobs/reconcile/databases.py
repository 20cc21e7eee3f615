"""What a service's database is asked: its tables as narrow queries, its clock, and how far back its rows reach.

Times come as seconds since 1970, as numbers: columns of type `datetime` have no zone, drivers disagree about the one to
assume, and SQLite has no times at all. They are moved to the broker's clock by what the two clocks differ by now.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.dialects.engines import MYSQL, POSTGRESQL, SQLITE
from tallystick.barrier.errors import TablesMissing
from tallystick.barrier.queries import COMMITTED, ROLLED_BACK
from tallystick.core.errors import ConfigError, TallystickError
from tallystick.spark.jdbc import Database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DIALECTS: dict[str, Dialect] = {"postgresql": POSTGRESQL, "mysql": MYSQL, "sqlite": SQLITE}
_SECONDS = {
    "postgresql": "extract(epoch from {})::double precision",
    "mysql": "timestampdiff(microsecond, '1970-01-01', {}) / 1e6",
    "sqlite": "(julianday({}) - 2440587.5) * 86400.0",
}
_TIME = {
    "postgresql": "to_timestamp({:.3f})",
    "mysql": "timestampadd(microsecond, {:.0f}000, '1970-01-01')",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', {:.3f}, 'unixepoch')",
}
SQLITE_FORMAT = "tallystick-sqlite"
BATCH_ROWS = 20_000
BUSY_SECONDS = 30.0


class ServiceDatabase:
    """One database of a producer or a consumer. `ahead_ms` is what is added to its times to get the broker's."""

    def __init__(self, url: str, named: str) -> None:
        self.named = named
        self._database = Database.parse(url, named)
        self._engine = self._database.address.engine
        self._dialect = _DIALECTS[self._engine]
        self.ahead_ms = 0
        self.barrier_ahead_ms = 0

    # --- small questions, asked by the driver ----------------------------------------------------------------

    def set_clock(self, reference_ahead_ms: int) -> None:
        """Learn what to add. `reference_ahead_ms`: by how much the broker's clock is ahead of this machine's."""
        asked = f"select {self._seconds(self._dialect.now)}, {self._seconds(self._dialect.barrier_now)}"
        ((own, of_barrier),) = self.ask(asked)
        reference = time.time() * 1000 + reference_ahead_ms
        self.ahead_ms = round(reference - float(own) * 1000)
        self.barrier_ahead_ms = round(reference - float(of_barrier) * 1000)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        try:
            with closing(self._database.connect(30.0)) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(query)
                return [tuple(row) for row in cursor.fetchall()]
        except Exception as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> TallystickError:
        return TallystickError(f"{self.named}: {' '.join(str(error).split())}")

    def has_table(self, table: str) -> bool:
        """Whether there is such a table: not every service uses all of ours."""
        try:
            with closing(self._database.connect(30.0)) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(f"select 1 from {table} where 1 = 0")  # noqa: S608 - checked names
                return True
        except Exception as error:
            if self._dialect.meaning(error) is TablesMissing:
                return False
            raise self._explained(error) from error

    def has_rows(self, table: str) -> bool:
        return self.has_table(table) and bool(self.ask(f"select 1 from {table} limit 1"))  # noqa: S608 - checked names

    def require_table(self, table: str) -> None:
        if not self.has_table(table):
            raise ConfigError(
                f"{self.named}: the database has no table {table}; make it with "
                "tallystick.barrier.create_tables(conn), or name another table or database",
                field="table",
            )

    def oldest(self, table: str, column: str, ahead_ms: int, condition: str = "1 = 1") -> int | None:
        """The oldest time in a column that has an index, by the broker's clock; None in an empty table."""
        query = f"select {self._seconds(f'min({column})')} from {table} where {condition}"  # noqa: S608 - checked names
        ((found,),) = self.ask(query)
        return None if found is None else round(float(found) * 1000) + ahead_ms

    # --- the tables, read by Spark ---------------------------------------------------------------------------

    def outcomes(self, spark: SparkSession, table: str, since_ms: int | None) -> DataFrame:
        """Columns gid, reason and seconds of the barrier's rows. `id` is there for splitting the work."""
        later = self._later("create_time", since_ms, self.barrier_ahead_ms)
        wanted = f"branch_id = '00' and op = 'msg' and barrier_id = '01' and reason in ('{COMMITTED}', '{ROLLED_BACK}')"
        columns = f"id, gid, reason, {self._seconds('create_time')} as seconds"
        query = f"select {columns} from {table} where {wanted}{later}"  # noqa: S608 - checked names
        return self._read(spark, query, "id bigint, gid string, reason string, seconds double", "id").drop("id")

    def unsent(self, spark: SparkSession, table: str) -> DataFrame:
        """Columns gid and seconds of the outbox's rows. Without a window: few, and each of them counts."""
        query = f"select gid, {self._seconds('created_at')} as seconds from {table}"  # noqa: S608 - checked names
        return self._read(spark, query, "gid string, seconds double")

    def inbox(self, spark: SparkSession, table: str, group: str, since_ms: int | None) -> DataFrame:
        """Columns message_id and seconds of what a group has applied."""
        later = self._later("created_at", since_ms, self.ahead_ms)
        columns = f"message_id, {self._seconds('created_at')} as seconds"
        query = f"select {columns} from {table} where consumer_group = '{group}'{later}"  # noqa: S608 - checked names
        return self._read(spark, query, "message_id string, seconds double", "message_id")

    def digests(self, spark: SparkSession, table: str, group: str, since_ms: int | None) -> DataFrame:
        """Columns message_id and digest of what a group has applied."""
        later = self._later("created_at", since_ms, self.ahead_ms)
        query = f"select message_id, digest from {table} where consumer_group = '{group}'{later}"  # noqa: S608 - checked names
        return self._read(spark, query, "message_id string, digest string", "message_id")

    def effects(self, spark: SparkSession, asked: str) -> DataFrame:
        """Column message_id of a table or query of the user's own."""
        return self._read(spark, _effects_query(asked), "message_id string")

    def check_effects(self, asked: str) -> None:
        """A wrong query is told before anything is read, and not by a task."""
        self.ask(f"{_effects_query(asked)} and 1 = 0")

    def offsets(self, table: str, group: str) -> dict[tuple[str, str, int], int]:
        """By store, topic and queue: where a group that keeps its own offsets reads next."""
        if not self.has_table(table):
            return {}
        query = f"select store, topic, queue, next_offset from {table} where consumer_group = '{group}'"  # noqa: S608
        return {(str(store), str(topic), int(queue)): int(place) for store, topic, queue, place in self.ask(query)}

    def _read(self, spark: SparkSession, query: str, schema: str, split_by: str | None = None) -> DataFrame:
        if self._engine == "sqlite":
            spark.dataSource.register(SqliteRows)
            file = self._database.address.parameters["path"]
            return spark.read.format(SQLITE_FORMAT).schema(schema).option("file", file).option("query", query).load()
        return self._database.read(spark, query, partition_by=split_by)

    def _seconds(self, expression: str) -> str:
        return _SECONDS[self._engine].format(expression)

    def _later(self, column: str, since_ms: int | None, ahead_ms: int) -> str:
        """A condition that the column's index can answer."""
        if since_ms is None:
            return ""
        own = since_ms - ahead_ms
        return f" and {column} >= {_TIME[self._engine].format(own if self._engine == 'mysql' else own / 1000)}"


def _effects_query(asked: str) -> str:
    inner = f"({asked})" if " " in asked.strip() else asked
    return f"select message_id from {inner} effects where message_id is not null"  # noqa: S608 - the user's own


# --- rows of an SQLite file, read by Python's own driver: no JDBC driver is needed, and no pandas ---------------


class SqliteRows(DataSource):
    """Options: `file` and `query`. The schema is given to `load()`; the query's columns come in its order."""

    @classmethod
    def name(cls) -> str:
        return SQLITE_FORMAT

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
