"""Messages that are stored in columns: making them, and reading back what a store holds of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from raw_client import RawClient
from tallystick.api.http.arrow_parts import part_of
from tallystick.columnar.body import checksum
from tallystick.core.message import Chunk, messages_of
from tallystick.core.ops import CommitBatch, PartRef, PrepareColumns
from tallystick.core.wire import ARROW
from tallystick.store.kv.store import KvStore

ROWS = 120
MARK = b"TSC1"  # how each half of a body begins
_decode_chunk = msgspec.msgpack.Decoder(Chunk).decode


def rows_of(topic: str, name: str, rows: int = ROWS) -> Any:
    """Large enough to be stored in columns, with something in each of them."""
    headers = [[("h", f"{name}-{number}")] if number % 3 else None for number in range(rows)]
    return pa.record_batch(
        {
            "topic": pa.array([topic] * rows, pa.string()),
            "value": pa.array([f"{name}-{number:04}-".encode() * 18 for number in range(rows)], pa.binary()),
            "key": pa.array([f"k{number}" if number % 2 else None for number in range(rows)], pa.string()),
            "headers": pa.array(headers, pa.map_(pa.string(), pa.string())),
            "tag": pa.array(["red" if number % 5 else None for number in range(rows)], pa.string()),
        }
    )


def values_of(topic: str, name: str, rows: int = ROWS) -> list[bytes]:
    found: list[bytes] = rows_of(topic, name, rows).column("value").to_pylist()
    return found


def prepared(topic: str, name: str, queues: int = 1, rows: int = ROWS) -> PrepareColumns:
    """What the broker makes of a request with these rows."""
    op = part_of(rows_of(topic, name, rows), name, 0, None, checksum(name.encode()), {topic: queues})
    assert op.pieces
    return op


def committed(version: int, *names: str, rows: int = ROWS) -> CommitBatch:
    return CommitBatch("app", version, f"g{version}", [PartRef(name, rows) for name in names])


def shown(store: KvStore) -> dict[str, list[bytes]]:
    """The values of all messages by topic, sorted: everything is read, so everything is verified."""
    found: dict[str, list[bytes]] = {}
    for view in store.topics():
        values = found[view.name] = []
        for queue in range(view.queues):
            offset, end = view.starts[queue], view.ends[queue]
            while offset < end:
                piece = store.read(view.name, queue, offset, 10_000, 10**8)
                assert piece.next > offset, f"{view.name}/{queue} gives nothing at {offset}"
                for raw in piece.chunks:
                    values += [one.value for one in messages_of(_decode_chunk(raw), view.name, queue, offset)]
                offset = piece.next
        values.sort()
    return found


def stream_of(rows: Any) -> bytes:
    made = io.BytesIO()
    with pa.ipc.new_stream(made, rows.schema) as writer:
        writer.write_batch(rows)
    return made.getvalue()


def put_part(client: RawClient, topic: str, name: str, rows: int = ROWS) -> Any:
    """By HTTP; the broker's answer."""
    return client.request("POST", f"/v1/parts/{name}", stream_of(rows_of(topic, name, rows)), {"Content-Type": ARROW})


def segments(data: Path) -> list[Path]:
    return sorted((data / "bodies").glob("*.segment"))
