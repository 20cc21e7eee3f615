"""Parts as Arrow: what a Spark task sends, checked column by column and divided among the queues.

The bytes come from the wire, so nothing in them is believed: no compressed buffers (a few kilobytes could ask for
gigabytes), no dictionaries, no foreign byte order, only the columns and types named here; every offset and string is
validated before anything is computed from them. What is stored was written anew by us, never the bytes that came.
"""

from __future__ import annotations

import struct
from typing import Any

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
_SCHEMA_HEADER, _BATCH_HEADER = 1, 3  # of MessageHeader in Arrow's Message.fbs
_ENDIANNESS = 0  # the field of Schema that is set when the byte order is not ours
_COMPRESSION = 3  # the field of RecordBatch that is set when its buffers are compressed


def rows_of_stream(body: bytes, limits: Limits) -> Any:
    """The rows of an Arrow IPC stream as one record batch that keeps to every rule for messages."""
    pa = pyarrow()
    try:
        _check_framing(pa, body)
        with pa.ipc.open_stream(body) as reader:
            _check_schema(pa, reader.schema)
            batches = list(_checked(reader, limits.part_messages))
            whole = pa.Table.from_batches(batches, reader.schema).combine_chunks().to_batches()
    except (pa.ArrowException, struct.error, OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is no Arrow IPC stream: {error}") from error
    rows = whole[0] if whole else pa.RecordBatch.from_pylist([], schema=reader.schema)
    _check_rows(pa, rows, limits)
    return rows


def _checked(reader: Any, most: int) -> Any:
    rows = 0
    for batch in reader:
        rows += batch.num_rows
        if rows > most:  # before it is looked at: a length is easily said
            raise TooLarge(f"{rows} rows in one request, the limit is {most}")
        batch.validate(full=True)
        yield batch


# --- what the stream is made of -----------------------------------------------------------------------------------


def _check_framing(pa: Any, body: bytes) -> None:
    for message in pa.ipc.MessageReader.open_stream(body):
        metadata = message.metadata.to_pybytes()
        root = struct.unpack_from("<I", metadata, 0)[0]
        kind = _field(metadata, root, 1)
        header = _field(metadata, root, 2)
        if not kind or metadata[kind] not in (_SCHEMA_HEADER, _BATCH_HEADER) or not header:
            raise InvalidRequest("the Arrow stream holds something else than a schema and plain record batches")
        table = header + struct.unpack_from("<I", metadata, header)[0]
        if metadata[kind] == _BATCH_HEADER and _field(metadata, table, _COMPRESSION):
            raise InvalidRequest("the Arrow stream is compressed; send it plain")
        order = _field(metadata, table, _ENDIANNESS) if metadata[kind] == _SCHEMA_HEADER else 0
        if order and struct.unpack_from("<h", metadata, order)[0]:
            raise InvalidRequest("the Arrow stream is big-endian; send it little-endian")


def _field(metadata: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffers table lies; 0 if it is not set."""
    vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
    if vtable < 0 or table < 0:
        raise InvalidRequest("the Arrow stream's metadata is damaged")
    place = 4 + 2 * number
    if place >= struct.unpack_from("<H", metadata, vtable)[0]:
        return 0
    offset = int(struct.unpack_from("<H", metadata, vtable + place)[0])
    return table + offset if offset else 0


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
            raise InvalidRequest(f"column {name} has the wrong type: {kind}", field=name)
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
    for topic in pa.compute.unique(columns["topic"]).to_pylist():
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
        _check_times(times_of(columns["deliver_at"]))


def _most(numbers: Any) -> int:
    return int(pyarrow().compute.max(numbers).as_py() or 0)


def _check_headers(pa: Any, headers: Any) -> None:
    pc = pa.compute
    # As lists of pairs, which Arrow can take apart; of sliced or null rows it leaves out what they do not hold.
    pairs = headers.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
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


def _check_times(times: Any) -> None:
    extremes = pyarrow().compute.min_max(times).as_py()
    if extremes["min"] is not None and not 0 <= extremes["min"] <= extremes["max"] <= LATEST_MS:
        raise InvalidRequest("deliver_at is before 1970 or after the year 9999", field="deliver_at")
