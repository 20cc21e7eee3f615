"""Rows that were checked, divided among the queues of their topics: in columns, as they will be stored.

What is little is not worth columns of its own: a commit writes it into a chunk shared with others.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from tallystick.api.http.arrow_in import times_of
from tallystick.columnar import body
from tallystick.columnar.arrow import pyarrow
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Piece, PrepareColumns

LEAST_BYTES = 16 * 1024  # of a piece, on the average
BODY_BYTES = 1024 * 1024
BODY_ROWS = 8_192
_STORED = ("key", "headers", "tag")


def part_of(rows: Any, part: str, index: int, ttl_ms: int | None, check: int, queues: dict[str, int]) -> PrepareColumns:
    """`queues` are the numbers of queues of the topics that the rows name; `check` is a checksum of the request."""
    divided = _Divided(rows, zlib.crc32(part.encode()) + index, queues)
    divided.divide()
    return PrepareColumns(part, index, ttl_ms, rows.num_rows, check, divided.pieces, divided.messages)


def topics_of(rows: Any) -> list[str]:
    named: list[str] = pyarrow().compute.unique(rows.column("topic")).to_pylist()
    return named


class _Divided:
    def __init__(self, rows: Any, turn: int, queues: dict[str, int]) -> None:
        self._rows, self._turn, self._queues = rows, turn, queues
        self.pieces: list[Piece] = []
        self.messages: list[tuple[int, OutgoingMessage]] = []

    def divide(self) -> None:
        rows, pc = self._rows, pyarrow().compute
        if not rows.num_rows:
            return
        chosen = None  # all of the rows, where they lie
        if "deliver_at" in rows.schema.names:
            later = pc.greater(times_of(rows.column("deliver_at")), 0)
            if pc.any(later).as_py():
                self._keep(pc.indices_nonzero(later))
                chosen = pc.indices_nonzero(pc.invert(later))
        if len(self._queues) > 1:
            for topic, own in self._by_topic(chosen):
                self._divide_topic(topic, self._queues[topic], own)
        elif chosen is None or len(chosen):
            self._divide_topic(*next(iter(self._queues.items())), chosen)

    def _by_topic(self, chosen: Any) -> Iterator[tuple[str, Any]]:
        """Sorted once, not looked through for each topic: a request may name thousands."""
        pc = pyarrow().compute
        topics = self._rows.column("topic")
        coded = (topics if chosen is None else topics.take(chosen)).dictionary_encode()
        order, start = pc.array_sort_indices(coded.indices), 0  # a stable sort
        if chosen is not None:
            order = chosen.take(order)
        # Topics get their codes in the order in which they are seen, and are counted in it too.
        counts = pc.value_counts(coded.indices).field("counts").to_pylist()
        for topic, count in zip(coded.dictionary.to_pylist(), counts, strict=True):
            yield topic, order.slice(start, count)
            start += count

    def _keep(self, chosen: Any) -> None:
        """These rows go by themselves."""
        sequences = chosen.to_pylist()
        self.messages += zip(sequences, _messages(self._rows.take(chosen)), strict=True)

    def _divide_topic(self, topic: str, queues: int, chosen: Any) -> None:
        rows = self._rows if chosen is None else self._rows.take(chosen)
        if _bytes(rows) < LEAST_BYTES * queues:
            self._keep(_numbers(rows.num_rows) if chosen is None else chosen)
            return
        if "key" in rows.schema.names and rows.column("key").null_count < rows.num_rows:
            order, bounds = _by_key(rows.column("key"), queues, self._turn)
            rows = rows.take(order)
            chosen = order if chosen is None else chosen.take(order)
        else:
            bounds = list(_in_turn(rows.num_rows, queues, self._turn))
        for queue, start, end in bounds:
            for first, last in _cut(rows, start, end):
                self._lay((topic, queues, queue), rows.slice(first, last - first), chosen, first)

    def _lay(self, where: tuple[str, int, int], rows: Any, chosen: Any, first: int) -> None:
        count = rows.num_rows
        columns = {name: rows.column(name) for name in _STORED if _holds(rows, name)}
        start = first
        if chosen is not None:
            start, columns["sequence"] = 0, chosen.slice(first, count).cast("int32")
        head = body.encode(columns, count, start)
        self.pieces.append(Piece(*where, count, head, body.encode({"value": rows.column("value")}, count)))


def _holds(rows: Any, name: str) -> bool:
    return name in rows.schema.names and rows.column(name).null_count < rows.num_rows


def _bytes(rows: Any) -> int:
    """Of all that would be stored: headers can be more than the values."""
    return sum(rows.column(name).nbytes for name in ("value", *_STORED) if name in rows.schema.names)


def _numbers(count: int) -> Any:
    return pyarrow().array(range(count), "int64")


def _by_key(keys: Any, queues: int, turn: int) -> tuple[Any, list[tuple[int, int, int]]]:
    """The rows in order of their queues, and where each queue's begin and end in that order. The same key always has
    the same queue (store/kv/bodies.py: queue_of); rows without one take turns."""
    pa = pyarrow()
    pc = pa.compute
    coded = keys.dictionary_encode()
    by_code = [zlib.crc32(key) % queues for key in coded.dictionary.cast(pa.binary()).to_pylist()]
    chosen = pa.array(by_code, pa.int32()).take(coded.indices)
    if chosen.null_count:
        # Counted by themselves: every fourth row without a key is not to mean every time the same queue.
        turns = pc.add(pc.cumulative_sum(pc.is_null(chosen).cast(pa.int64())), turn % queues)
        turns = pc.subtract(turns, pc.multiply(pc.divide(turns, queues), queues))
        chosen = pc.coalesce(chosen, turns.cast(pa.int32()))
    counts = {one["values"]: one["counts"] for one in pc.value_counts(chosen).to_pylist()}
    bounds, start = [], 0
    for queue in sorted(counts):
        bounds.append((queue, start, start + counts[queue]))
        start += counts[queue]
    return pc.array_sort_indices(chosen), bounds  # a stable sort: within a queue they stay in order


def _in_turn(count: int, queues: int, turn: int) -> Iterator[tuple[int, int, int]]:
    """Rows without keys: each queue gets its share in one piece, so that nothing has to be moved."""
    for share in range(queues):
        start, end = count * share // queues, count * (share + 1) // queues
        if start < end:
            yield (turn + share) % queues, start, end


def _cut(rows: Any, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Pieces that are small enough for a body; a row is never cut."""
    piece = rows.slice(start, end - start)
    if end - start > 1 and (_bytes(piece) > BODY_BYTES or end - start > BODY_ROWS):
        middle = (start + end) // 2
        yield from _cut(rows, start, middle)
        yield from _cut(rows, middle, end)
    else:
        yield start, end


def _messages(rows: Any) -> Iterator[OutgoingMessage]:
    columns = {name: rows.column(name) for name in rows.schema.names}
    if "deliver_at" in columns:
        columns["deliver_at"] = times_of(columns["deliver_at"])
    for row in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        message = OutgoingMessage(**dict(zip(columns, row, strict=True)))
        if message.headers is not None:
            message.headers = dict(message.headers)
        yield message
