"""Parts as Arrow: what a Spark task sends, checked column by column and divided among the queues.

The bytes come from the wire, so nothing in them is believed: the frame is looked through before Arrow reads it
(arrow_frame.py), only the columns and types named here are taken, and every offset and string is validated before
anything is computed from them. What is stored was written anew by us, never the bytes that came.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tallystick.api.http.arrow_frame import check_frame
from tallystick.columnar.arrow import pyarrow
from tallystick.core.errors import InvalidRequest, TooLarge
from tallystick.core.limits import Limits
from tallystick.core.message import LATEST_MS
from tallystick.core.names import (
    LONGEST_HEADER_NAME,
    LONGEST_HEADER_VALUE,
    LONGEST_KEY,
    LONGEST_TAG,
    MOST_HEADERS,
    check_name,
)

COLUMNS = ("topic", "value", "key", "headers", "tag", "deliver_at")
_LONGEST_REASON = 300
# Milliseconds in one unit of time: first of these divided by second.
_UNITS = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}


def rows_of_stream(body: bytes, limits: Limits) -> Any:
    """The rows of an Arrow IPC stream as one record batch that keeps to every rule for messages."""
    pa = pyarrow()
    check_frame(body, limits.part_messages)
    try:
        with pa.ipc.open_stream(body) as reader:
            _check_schema(pa, reader.schema)
            batches = list(_checked(reader))
            whole = pa.Table.from_batches(batches, reader.schema).combine_chunks().to_batches()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is no Arrow IPC stream: {str(error)[:_LONGEST_REASON]}") from error
    rows = whole[0] if whole else pa.RecordBatch.from_pylist([], schema=reader.schema)
    _check_rows(pa, rows, limits)
    return rows


def _checked(reader: Any) -> Iterator[Any]:
    for batch in reader:
        batch.validate(full=True)
        yield batch


def _check_schema(pa: Any, schema: Any) -> None:
    kinds = pa.types
    fits = {
        "topic": kinds.is_string,
        "value": kinds.is_binary,
        "key": kinds.is_string,
        "headers": lambda kind: kind == pa.map_(pa.string(), pa.string()),
        "tag": kinds.is_string,
        "deliver_at": kinds.is_timestamp,
    }
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in fits:
            raise InvalidRequest(f"column {name[:80]!r} is not one of {', '.join(COLUMNS)}", field=name[:80])
        if not fits[name](kind):
            raise InvalidRequest(f"column {name} has the wrong type: {str(kind)[:_LONGEST_REASON]}", field=name)
        if schema.names.count(name) > 1:
            raise InvalidRequest(f"column {name} is there more than once", field=name)
    for name in ("topic", "value"):
        if name not in schema.names:
            raise InvalidRequest(f"column {name} is missing", field=name)


# --- what the rows hold --------------------------------------------------------------------------------------------


def _check_rows(pa: Any, rows: Any, limits: Limits) -> None:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    for name in ("topic", "value"):
        if columns[name].null_count:
            raise InvalidRequest(f"column {name} has a null; every message needs a {name}", field=name)
    topics = pa.compute.unique(columns["topic"]).to_pylist()
    if len(topics) > limits.topics:
        raise TooLarge(f"column topic names {len(topics)} topics, the limit is {limits.topics}", field="topic")
    for topic in topics:
        check_name(topic, "topic")
    longest = _most(pa.compute.binary_length(columns["value"]))
    if longest > limits.message_bytes:
        raise TooLarge(f"column value has {longest} bytes, the limit is {limits.message_bytes}", field="value")
    for name, most in (("key", LONGEST_KEY), ("tag", LONGEST_TAG)):
        if name in columns and (longest := _most(pa.compute.utf8_length(columns[name]))) > most:
            raise TooLarge(f"column {name} has a text of {longest} characters, the limit is {most}", field=name)
    if "headers" in columns:
        _check_headers(pa, columns["headers"])
    if "deliver_at" in columns:
        _check_times(columns["deliver_at"])


def _most(numbers: Any) -> int:
    return int(pyarrow().compute.max(numbers).as_py() or 0)


def _check_headers(pa: Any, headers: Any) -> None:
    pc = pa.compute
    # As lists of pairs, which Arrow can take apart. Rows without headers may hide some, which nobody will read.
    pairs = headers.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))).drop_null()
    flat = pairs.flatten()
    names, texts = flat.field("key"), flat.field("value")
    lengths = pc.utf8_length(names)
    if (
        names.null_count
        or texts.null_count
        or _most(lengths) > LONGEST_HEADER_NAME
        or (len(names) and pc.min(lengths).as_py() < 1)
        or _most(pc.utf8_length(texts)) > LONGEST_HEADER_VALUE
    ):
        raise InvalidRequest(
            f"headers: each needs a name of 1 to {LONGEST_HEADER_NAME} characters and a text of at most "
            f"{LONGEST_HEADER_VALUE}",
            field="headers",
        )
    count = _most(pc.list_value_length(pairs))
    if count > MOST_HEADERS:
        raise InvalidRequest(f"headers: {count} of them for one message, the limit is {MOST_HEADERS}", field="headers")
    named = pa.table({"row": pc.list_parent_indices(pairs), "name": names})
    if named.group_by(["row", "name"]).aggregate([]).num_rows < len(names):
        raise InvalidRequest("headers: a message has two of one name", field="headers")


def times_of(column: Any) -> Any:
    """Milliseconds since the epoch; 0 for at once."""
    pa = pyarrow()
    return pa.compute.fill_null(column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()), 0)


def _check_times(column: Any) -> None:
    """In the column's own unit: seconds could be so many that their milliseconds are no number any more."""
    extremes = pyarrow().compute.min_max(column.cast(pyarrow().int64())).as_py()
    times, part = _UNITS[column.type.unit]
    if extremes["min"] is not None and not (extremes["min"] >= 0 and extremes["max"] * times // part <= LATEST_MS):
        raise InvalidRequest("deliver_at is before 1970 or after the year 9999", field="deliver_at")
