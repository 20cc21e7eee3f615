"""The columns of a topic, as Spark and as Arrow know them."""

from __future__ import annotations

from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tallystick.core.errors import InvalidRequest

_HEADERS = "headers"
_COLUMNS = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("queue", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("key", StringType()),
        StructField("value", BinaryType(), nullable=False),
        StructField(_HEADERS, MapType(StringType(), StringType())),
        StructField("tag", StringType()),
        StructField("gid", StringType()),
        StructField("sequence", IntegerType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("born_at", TimestampType(), nullable=False),
    ]
)


def topic_schema(include_headers: bool = False) -> StructType:
    """What `load()` shows; the headers, which few need, only where they were asked for."""
    return StructType([field for field in _COLUMNS if include_headers or field.name != _HEADERS])


class Shape:
    """Record batches of the broker, turned into those that Spark expects: it compares the whole Arrow schema.

    `schema` may be a choice of the columns, in any order: a schema that the user gave to `load()`. Nothing else is
    asked of the broker.
    """

    def __init__(self, schema: StructType, columns: StructType = _COLUMNS, of: str = "a topic") -> None:
        known = {field.name: field for field in columns}
        for field in schema:
            if field.name in known and field.dataType != known[field.name].dataType:
                right, wrong = known[field.name].dataType.simpleString(), field.dataType.simpleString()
                raise InvalidRequest(
                    f"schema: column {field.name} of {of} is {right}, not {wrong}; read it as it is, then cast it: "
                    f"selectExpr('cast({field.name} as {wrong})')",
                    field="schema",
                )
            if field.name not in known:
                raise InvalidRequest(
                    f"schema: {of} has no column {field.name} {field.dataType.simpleString()}; it has "
                    + ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in columns),
                    field="schema",
                )
        self.arrow = to_arrow_schema(schema, timezone="UTC")
        # The offsets are needed in any case: by them a reader knows that it has everything.
        self.needed = tuple(name for name in known if name in self.arrow.names or name == "offset")

    def fit(self, batch: Any) -> Any:
        """The same rows; only the times are computed anew (milliseconds to microseconds), all else is shared."""
        import pyarrow as pa

        columns = [_as(batch.column(field.name), field.type) for field in self.arrow]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


def _as(column: Any, kind: Any) -> Any:
    return column if column.type == kind else column.cast(kind)
