"""Messages as they come from Spark: in columns, through the checks and the division that the broker makes of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
from engines import Place

from tallystick.api.http import arrow, arrow_in, arrow_parts
from tallystick.columnar.body import checksum
from tallystick.core.limits import Limits
from tallystick.core.message import Chunk, OutgoingMessage
from tallystick.core.ops import PrepareColumns

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("value", pa.binary()),
        ("key", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("tag", pa.string()),
        ("deliver_at", pa.timestamp("ms", "UTC")),
    ]
)
_decode_chunk = msgspec.msgpack.Decoder(Chunk).decode


@contextmanager
def laying_down_little(rows: int = 8_192) -> Iterator[None]:
    """Parts of a few bytes are treated as large ones; a body holds this many rows."""
    with patch.object(arrow_parts, "LEAST_BYTES", 0), patch.object(arrow_parts, "BODY_ROWS", rows):
        yield


def in_columns(
    place: Place, part: str, messages: list[OutgoingMessage], index: int = 0, ttl_ms: int | None = None
) -> PrepareColumns:
    made = io.BytesIO()
    rows = [{name: getattr(one, name) for name in SCHEMA.names} for one in messages]
    for row in rows:
        row["headers"] = None if row["headers"] is None else list(row["headers"].items())
    with pa.ipc.new_stream(made, SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    checked = arrow_in.rows_of_stream(made.getvalue(), Limits())
    views = {name: place.store.topic(name) for name in arrow_parts.topics_of(checked)}
    queues = {name: view.queues if view else place.settings.default_queues for name, view in views.items()}
    return arrow_parts.part_of(checked, part, index, ttl_ms, checksum(made.getvalue()), queues)


def read_as_arrow(
    place: Place, topic: str, queue: int, first: int = 0, end: int = 2**62, names: tuple[str, ...] | None = None
) -> list[dict[str, Any]]:
    """Rows with offsets in [first, end), as an Arrow reader gets them."""
    found: list[dict[str, Any]] = []
    view = place.store.topic(topic)
    assert view is not None
    offset, last = first, min(end, view.ends[queue])
    welcome: Any = "all" if names is None or "value" in names else "no values"
    while offset < last:
        piece = place.store.read(topic, queue, offset, 10, 2_000, welcome)
        batches = [arrow.batch_of_columns(one, topic, queue, offset, last, names) for one in piece.columns]
        if piece.chunks:
            chunks = [_decode_chunk(chunk) for chunk in piece.chunks]
            batches.append(arrow.batch_of_chunks(chunks, topic, queue, offset, last, names))
        for batch in batches:
            batch.validate(full=True)
            found += batch.to_pylist()
        offset = piece.next
    return found
