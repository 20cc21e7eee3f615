"""`format("tallystick")`: what Spark asks for is handed to the module that has it.

Spark makes this object anew in several processes, none of them the user's own; everything behind it is imported
where it is asked for, so that a reader loads no sink and a sink no reader.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tallystick.core.errors import InvalidRequest, TallystickError

FORMAT = "tallystick"


class TallystickSource(DataSource):
    """Topics, the broker's own tables and the sink, under one name."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        if table := self._table():
            from tallystick.spark.tables import table_schema

            return table_schema(table, self.options)
        from tallystick.spark.schema import topic_schema
        from tallystick.spark.source.settings import includes_headers

        return topic_schema(includes_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._table():
            from tallystick.spark.tables import TableReader

            return TableReader(self.options, schema)
        from tallystick.spark.source.reader import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tallystick.spark.source.reader import RefusedStream, StreamReader

        try:
            if table := self._table():
                raise InvalidRequest(f"option 'table': {table!r} is no stream; read it with spark.read", field="table")
            return StreamReader(self.options, schema)
        except TallystickError as error:
            # Told by the first question that Spark asks: of an error here it shows only one of its own that follows.
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tallystick.spark.sink.writer import BatchWriter

        writer = BatchWriter(schema, self.options, overwrite)
        writer.check_access()
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tallystick.spark.sink.writer import StreamWriter

        return StreamWriter(schema, self.options, overwrite)

    def _table(self) -> str:
        return self.options.get("table", "").strip()
