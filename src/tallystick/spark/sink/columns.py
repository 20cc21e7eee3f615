"""The columns of a write: which there may be, and how they become the columns that the broker takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from tallystick.core.errors import InvalidRequest
from tallystick.spark.sink.content import Content, content_of
from tallystick.spark.sink.options import SinkOptions

_HEADERS = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("ms", tz="UTC")
_ADDED_BYTES = 12  # in a row, for the topic's place and the time of delivery


class _Kind(Struct, frozen=True):
    """One column that a write may have: what Spark may call it, and what the broker wants."""

    allowed: str
    accepts: Callable[[DataType], bool]
    arrow: Any
    advice: str


def _text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _text_or_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _texts(kind: DataType) -> bool:
    return isinstance(kind, MapType) and _text(kind.keyType) and _text(kind.valueType)


def _instant(kind: DataType) -> bool:
    return isinstance(kind, TimestampType)


COLUMNS = {
    "value": _Kind("string or binary", _text_or_bytes, pa.binary(), "to_json(struct(...)) makes one string of columns"),
    "topic": _Kind("string", _text, pa.string(), "cast it to string"),
    "key": _Kind(
        "string or binary",
        _text_or_bytes,
        pa.string(),
        "cast(key as string), or base64(key) for bytes that are no text",
    ),
    "headers": _Kind(
        "map<string,string>", _texts, _HEADERS, "map_from_entries() and transform_values() make one of other forms"
    ),
    "tag": _Kind("string", _text, pa.string(), "cast it to string"),
    "deliver_at": _Kind("timestamp", _instant, _TIME, "cast it to timestamp"),
}


class Columns(Struct, frozen=True):
    """The columns of one write. `topic` and `delay_ms` come from options and hold for every row."""

    names: tuple[str, ...]
    topic: str
    delay_ms: int

    def shaped(self, batch: Any) -> Any:
        """The rows in the form that the broker takes."""
        columns = {name: _cast(batch, name) for name in self.names}
        if self.topic:
            columns["topic"] = pa.repeat(self.topic, batch.num_rows)
        if self.delay_ms:
            # From now, not from the start of the batch: "not before that long after it was sent".
            at = pa.scalar(time.time_ns() // 1_000_000 + self.delay_ms, pa.int64()).cast(_TIME)
            columns["deliver_at"] = pa.repeat(at, batch.num_rows)
        return pa.record_batch(list(columns.values()), names=list(columns))

    def content(self, shaped: Any) -> Content:
        """What the rows hold. The time that option 'delay' gives them is the attempt's, not theirs."""
        return content_of(shaped.drop_columns(["deliver_at"]) if self.delay_ms else shaped)

    def size(self, batch: Any) -> int:
        """About how many bytes the rows will have in that form."""
        return int(batch.nbytes + batch.num_rows * (len(self.topic) + _ADDED_BYTES))

    def check(self, batch: Any) -> None:
        """Refuse rows without what a message must have, before any of them is sent."""
        for name in ("topic", "value"):
            if name in self.names and (nulls := batch.column(name).null_count):
                raise _null(name, f"{nulls} of {batch.num_rows} rows have none", f"filter on {name} is not null")
        if "headers" in self.names and batch.column("headers").items.null_count:
            advice = "map_filter(headers, (name, value) -> value is not null) drops them"
            raise _null("headers", "a header without a value", advice)


def columns_of(schema: StructType, options: SinkOptions) -> Columns:
    """The columns of a write with this schema, or an error that says what is wrong with it."""
    names = schema.fieldNames()
    _check_names(names)
    for field in schema.fields:
        kind = COLUMNS[field.name]
        if not kind.accepts(field.dataType):
            raise _refused(field.name, f"{field.dataType.simpleString()}, but must be {kind.allowed}; {kind.advice}")
    if "value" not in names:
        raise InvalidRequest(f"there is no column 'value'; {COLUMNS['value'].advice}", field="value")
    if "topic" not in names and not options.topic:
        raise InvalidRequest(
            "topic: a write needs one. Use option 'topic', save('...') or start('...'), or a column 'topic'",
            field="topic",
        )
    if "deliver_at" in names and options.delay_ms:
        raise _refused("deliver_at", "and option 'delay' say the same thing; give one of them")
    # The option wins over the column, as with Spark's Kafka sink.
    sent = tuple(name for name in names if name != "topic" or not options.topic)
    return Columns(sent, options.topic, options.delay_ms)


def _check_names(names: list[str]) -> None:
    unknown = sorted(set(names) - COLUMNS.keys())
    if unknown:
        told = ", ".join(map(repr, unknown))
        allowed = ", ".join(f"{name} ({kind.allowed})" for name, kind in COLUMNS.items())
        raise InvalidRequest(f"the sink has no column {told}; select or rename to: {allowed}", field=unknown[0])
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _refused(twice[0], "is there more than once")


def _cast(batch: Any, name: str) -> Any:
    kind = COLUMNS[name].arrow
    column = batch.column(name)
    try:
        # Not checked for lost digits: Spark counts microseconds, the broker milliseconds.
        return pc.cast(column, kind, safe=False) if kind is _TIME else pc.cast(column, kind)
    except pa.ArrowInvalid as error:
        raise _refused(name, f"{error}; {COLUMNS[name].advice}") from error


def _null(name: str, what: str, advice: str) -> InvalidRequest:
    return _refused(name, f"{what}; {advice}")


def _refused(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"column {name!r}: {why}", field=name)
