"""Parts as Arrow: what a Spark task sends, checked and turned into messages column by column.

The bytes come from the wire, so nothing in them is believed: no compressed buffers (a few kilobytes could ask for
gigabytes), no dictionaries, only the columns and types named here, and every offset and string is validated.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import Any

from tallystick.api.http.arrow import pyarrow
from tallystick.core.errors import InvalidRequest, TooLarge
from tallystick.core.message import OutgoingMessage
from tallystick.core.names import LONGEST_HEADER_NAME, LONGEST_HEADER_VALUE, LONGEST_KEY, LONGEST_TAG, check_name

LATEST_MS = 253_402_300_799_999
COLUMNS = ("topic", "value", "key", "headers", "tag", "deliver_at")
_SCHEMA_HEADER, _BATCH_HEADER = 1, 3  # of MessageHeader in Arrow's Message.fbs
_COMPRESSION = 3  # the field of RecordBatch that is set when its buffers are compressed


def messages_of_stream(body: bytes, most: int) -> list[OutgoingMessage]:
    """The rows of an Arrow IPC stream as messages, in order."""
    pa = pyarrow()
    try:
        _refuse_compressed(pa, body)
        with pa.ipc.open_stream(body) as reader:
            _check_schema(pa, reader.schema)
            batches = list(reader)
            for batch in batches:
                batch.validate(full=True)
    except (pa.ArrowException, struct.error, OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is no Arrow IPC stream: {error}") from error
    rows = sum(batch.num_rows for batch in batches)
    if rows > most:
        raise TooLarge(f"{rows} rows in one request, the limit is {most}")
    return [message for batch in batches for message in _messages(pa, batch)]


def _refuse_compressed(pa: Any, body: bytes) -> None:
    for message in pa.ipc.MessageReader.open_stream(body):
        metadata = message.metadata.to_pybytes()
        root = struct.unpack_from("<I", metadata, 0)[0]
        kind = _field(metadata, root, 1)
        header = _field(metadata, root, 2)
        if not kind or metadata[kind] not in (_SCHEMA_HEADER, _BATCH_HEADER) or not header:
            raise InvalidRequest("the Arrow stream holds something else than a schema and plain record batches")
        batch = header + struct.unpack_from("<I", metadata, header)[0]
        if metadata[kind] == _BATCH_HEADER and _field(metadata, batch, _COMPRESSION):
            raise InvalidRequest("the Arrow stream is compressed; send it plain")


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


def _messages(pa: Any, batch: Any) -> list[OutgoingMessage]:
    import pyarrow.compute as pc

    columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name in ("topic", "value"):
        if columns[name].null_count:
            raise InvalidRequest(f"column {name} has a null; every message needs a {name}", field=name)
    for topic in pc.unique(columns["topic"]).to_pylist():
        check_name(topic, "topic")
    for name, most in (("key", LONGEST_KEY), ("tag", LONGEST_TAG)):
        longest = pc.max(pc.utf8_length(columns[name])).as_py() if name in columns else None
        if longest is not None and longest > most:
            raise TooLarge(f"column {name} has a text of {longest} characters, the limit is {most}", field=name)
    return [
        OutgoingMessage(*row)
        for row in zip(
            columns["topic"].to_pylist(),
            columns["value"].to_pylist(),
            columns["key"].to_pylist() if "key" in columns else repeat(None),
            [_headers(one) for one in columns["headers"].to_pylist()] if "headers" in columns else repeat(None),
            columns["tag"].to_pylist() if "tag" in columns else repeat(None),
            _times(pa, pc, columns["deliver_at"]) if "deliver_at" in columns else repeat(0),
            strict=False,
        )
    ]


def _headers(pairs: list[tuple[str, str | None]] | None) -> dict[str, str] | None:
    if pairs is None:
        return None
    headers: dict[str, str] = {}
    for name, value in pairs:
        if value is None or not 0 < len(name) <= LONGEST_HEADER_NAME or len(value) > LONGEST_HEADER_VALUE:
            raise InvalidRequest(
                f"headers: {name[:80]!r} needs a name of 1 to {LONGEST_HEADER_NAME} characters "
                f"and a text of at most {LONGEST_HEADER_VALUE}",
                field="headers",
            )
        headers[name] = value
    return headers


def _times(pa: Any, pc: Any, column: Any) -> list[int]:
    times: list[int] = pc.fill_null(column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()), 0).to_pylist()
    if times and not 0 <= min(times) <= max(times) <= LATEST_MS:
        raise InvalidRequest("deliver_at is before 1970 or after the year 9999", field="deliver_at")
    return times
