"""The task's side: the rows of one task attempt become one part, in requests of bounded size.

Rows that are over a limit of the broker are refused before they are sent, and named: a batch may have millions.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.core.errors import InvalidRequest, TooLarge
from tallystick.core.ids import new_gid
from tallystick.core.names import LONGEST_HEADER_NAME, LONGEST_HEADER_VALUE, LONGEST_KEY, LONGEST_TAG, MOST_HEADERS
from tallystick.link import Link
from tallystick.spark.sink.columns import Columns
from tallystick.spark.sink.content import Content

REQUEST_BYTES = 4 * 1024 * 1024
REQUEST_ROWS = 20_000
_SHOWN_KEY, _SHOWN_VALUE = 80, 40


class Part:
    """A part on its way to the broker. While a request is under way, the next one is made.

    Its id is drawn here and belongs to this attempt alone: another attempt of the task, a replay or a driver that was
    thought dead can neither add to it nor commit it. What is not committed expires in the broker.
    """

    def __init__(self, link: Link, columns: Columns, ttl_ms: int | None, store: str = "") -> None:
        self.id = new_gid(store)
        self.content = Content()
        self._link, self._columns, self._ttl_ms = link, columns, ttl_ms
        self._requests = 0
        self._waiting: list[Any] = []
        self._bytes = self._rows = 0
        self._limits: dict[str, int] | None = None
        self._sender = ThreadPoolExecutor(1, "tallystick-sink")
        self._under_way: Future[Any] | None = None

    def __enter__(self) -> Part:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Everything is sent when this returns. If the task has failed, its request is given up, whatever becomes of
        it: nobody will commit the part."""
        try:
            if error is None:
                self.flush()
                self._sent()
        finally:
            if self._under_way is not None:
                self._link.abandon()
            self._sender.shutdown()

    def add(self, batch: Any) -> None:
        """Take rows, and send what has come together: what is held is never more than two requests, one under way and
        one that waits for it."""
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
        rows = batch.num_rows
        count = min(rows, max(-(-self._columns.size(batch) // self._request_bytes()), -(-rows // REQUEST_ROWS)))
        if count == 1:
            yield batch
            return
        for begin, end in pairwise(rows * number // count for number in range(count + 1)):
            yield from self._pieces(batch.slice(begin, end - begin))

    def flush(self) -> None:
        """Send what waits, once the request before is answered: its error, if it has one, is raised here. A request's
        number makes it safe to repeat after a lost answer."""
        if not self._waiting:
            return
        shaped = [self._columns.shaped(piece) for piece in self._waiting]
        for batch in shaped:
            # A request above the limit would be cut off, not answered.
            check_rows(batch, self._known_limits()["message_bytes"])
        self.content = sum(map(self._columns.content, shaped), self.content)
        body, self._waiting, self._bytes, self._rows = _stream(shaped), [], 0, 0
        self._sent()
        self._under_way = self._sender.submit(self._send, body, self._requests)
        self._requests += 1

    def _send(self, body: memoryview, index: int) -> None:
        self._link.post_arrow("parts", self.id, body=body, index=index, ttl_ms=self._ttl_ms)

    def _sent(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def _known_limits(self) -> dict[str, int]:
        if self._limits is None:
            self._limits = self._link.get("info")["limits"]
        return self._limits

    def _request_bytes(self) -> int:
        # Half of what the broker takes: Arrow's own bytes come on top of what is counted here.
        return min(REQUEST_BYTES, self._known_limits()["request_bytes"] // 2)


def _stream(batches: list[Any]) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(sink.getvalue())


# --- limits of the broker ---------------------------------------------------------------------------------------


def check_rows(batch: Any, message_bytes: int) -> None:
    """Refuse rows in the form that the broker takes; `message_bytes` is its own limit for a value."""
    names = batch.schema.names
    sizes = pc.binary_length(batch.column("value"))
    _check(batch, "value", sizes, message_bytes, "bytes, the broker's limit is {limit} (max_message_bytes)")
    for name, longest in (("key", LONGEST_KEY), ("tag", LONGEST_TAG)):
        if name in names:
            _check(batch, name, pc.utf8_length(batch.column(name)), longest, "characters, the limit is {limit}")
    if "headers" in names:
        _check_headers(batch)


def _check(batch: Any, column: str, sizes: Any, limit: int, words: str) -> None:
    if (pc.max(sizes).as_py() or 0) <= limit:
        return
    at = pc.index(pc.fill_null(pc.greater(sizes, limit), False), True).as_py()
    raise TooLarge(
        f"column {column!r}: a row with {_named(batch, at)} has {sizes[at].as_py()} {words.format(limit=limit)}",
        field=column,
    )


def _check_headers(batch: Any) -> None:
    column = batch.column("headers")
    ends = column.offsets
    _check(batch, "headers", pc.subtract(ends[1:], ends[:-1]), MOST_HEADERS, "headers, the limit is {limit}")
    # Of all rows that share the memory, this batch's or not: which row it is, is looked for only if one is too long.
    if _longest(column.keys) <= LONGEST_HEADER_NAME and _longest(column.items) <= LONGEST_HEADER_VALUE:
        return
    for at, pairs in enumerate(column.to_pylist()):
        for name, value in pairs or ():
            if len(name) > LONGEST_HEADER_NAME or len(value) > LONGEST_HEADER_VALUE:
                raise InvalidRequest(
                    f"column 'headers': a row with {_named(batch, at)} has a header {name[:_SHOWN_KEY]!r} with a name "
                    f"of {len(name)} characters and a text of {len(value)}; the limits are {LONGEST_HEADER_NAME} and "
                    f"{LONGEST_HEADER_VALUE}",
                    field="headers",
                )


def _longest(texts: Any) -> int:
    return int(pc.max(pc.utf8_length(texts)).as_py() or 0)


def _named(batch: Any, at: int) -> str:
    """By its key, or else by what its value begins with."""
    key = batch.column("key")[at].as_py() if "key" in batch.schema.names else None
    if key is not None:
        return f"key {key[:_SHOWN_KEY]!r}" + ("..." if len(key) > _SHOWN_KEY else "")
    value = batch.column("value")[at].as_py()
    return f"value {value[:_SHOWN_VALUE]!r}" + ("..." if len(value) > _SHOWN_VALUE else "")
