"""The task's side: the rows of one task attempt become one part, in requests of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tallystick.core.ids import new_gid
from tallystick.link import Link
from tallystick.spark.sink.columns import Columns
from tallystick.spark.sink.content import Content
from tallystick.spark.sink.limits import check_rows

REQUEST_BYTES = 4 * 1024 * 1024
REQUEST_ROWS = 20_000


class Part:
    """A part on its way to the broker.

    Its id is drawn here and belongs to this attempt alone: another attempt of the task, a replay or a driver that was
    thought dead can neither add to it nor commit it. What is not committed expires in the broker.
    """

    def __init__(self, link: Link, columns: Columns, ttl_ms: int | None) -> None:
        self.id = new_gid()
        self.content = Content()
        self._link, self._columns, self._ttl_ms = link, columns, ttl_ms
        self._requests = 0
        self._waiting: list[Any] = []
        self._bytes = self._rows = 0
        self._limits: dict[str, int] | None = None

    def add(self, batch: Any) -> None:
        """Take rows, and send what has come together: what waits is never more than one request."""
        if not batch.num_rows:
            return
        self._columns.check(batch)
        for piece in self._pieces(batch):
            size = self._columns.size(piece)
            if self._bytes + size > self._request_bytes() or self._rows + piece.num_rows > REQUEST_ROWS:
                self.flush()
            self._waiting.append(piece)
            self._bytes += size
            self._rows += piece.num_rows

    def _pieces(self, batch: Any) -> Iterator[Any]:
        """The batch in slices that fit a request; a row is never cut."""
        fits = self._columns.size(batch) <= self._request_bytes() and batch.num_rows <= REQUEST_ROWS
        if fits or batch.num_rows == 1:
            yield batch
            return
        half = batch.num_rows // 2
        yield from self._pieces(batch.slice(0, half))
        yield from self._pieces(batch.slice(half))

    def flush(self) -> None:
        """Send what waits. The request's number makes it safe to repeat after a lost answer."""
        if not self._waiting:
            return
        shaped = [self._columns.shaped(piece) for piece in self._waiting]
        for batch in shaped:
            # A request above the limit would be cut off, not answered.
            check_rows(batch, self._known_limits()["message_bytes"])
        self._link.post_arrow("parts", self.id, body=_stream(shaped), index=self._requests, ttl_ms=self._ttl_ms)
        self._requests += 1
        self.content = sum(map(self._columns.content, shaped), self.content)
        self._waiting, self._bytes, self._rows = [], 0, 0

    def _known_limits(self) -> dict[str, int]:
        if self._limits is None:
            self._limits = self._link.get("info")["limits"]
        return self._limits

    def _request_bytes(self) -> int:
        # Half of what the broker takes: Arrow's own bytes come on top of what is counted here.
        return min(REQUEST_BYTES, self._known_limits()["request_bytes"] // 2)


def _stream(batches: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded
