"""Columns as chunks: for readers that want messages, whatever form they are stored in."""

from __future__ import annotations

from typing import Any

from tallystick.columnar.body import Encoded
from tallystick.core.message import Chunk, StoredColumns


def chunk_of(stored: StoredColumns, topic: str, queue: int) -> Chunk:
    where = f"{topic}/{queue}, from offset {stored.base}"
    head, values = Encoded(stored.columns, where), Encoded(stored.values, where)
    columns, rows = head.columns, head.rows

    def listed(name: str) -> list[Any]:
        return columns[name].to_pylist() if name in columns else [None] * rows

    return Chunk(
        stored.base,
        stored.stored_at,
        [stored.gid] * rows,
        [stored.first + sequence for sequence in head.sequences(columns).to_pylist()],
        listed("key"),
        values.columns["value"].to_pylist(),
        [None if pairs is None else dict(pairs) for pairs in listed("headers")],
        listed("tag"),
        [stored.born_at] * rows,
    )
