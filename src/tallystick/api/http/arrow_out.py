"""Bulk reads as Arrow: a stream of record batches, each read while the one before is on its way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from tallystick.api.http.arrow import batch_of_chunks, batch_of_columns, schema_of
from tallystick.api.serving.asgi import CallerGone
from tallystick.broker.door import BrokerDoor
from tallystick.columnar.arrow import StreamPieces
from tallystick.core.errors import DamagedData, TallystickError
from tallystick.core.message import Chunk, Slice

log = logging.getLogger("tallystick.api")

ROWS_AT_ONCE = 8_192
BYTES_AT_ONCE = 2 * 1024 * 1024
_decode = msgspec.msgpack.Decoder(Chunk).decode
Buffers = list[memoryview]


class QueueStream:
    """The offsets of a queue from `offset` on, up to its end or to `end`, as an Arrow IPC stream.

    Reading is off the event loop: reading and building arrays of megabytes would hold every other request up. It is
    one piece ahead of sending, never more, so a slow reader costs the broker two pieces.
    """

    def __init__(
        self,
        door: BrokerDoor,
        topic: str,
        queue: int,
        offset: int,
        end: int | None,
        names: tuple[str, ...],
        called: int | None = None,
    ) -> None:
        """`called` is the number that the rows have for the queue, if that is another one."""
        self._door, self._topic, self._queue, self._names = door, topic, queue, names
        self._called = queue if called is None else called
        self._offset, self._asked_end = offset, end
        self._welcome: Any = "all" if "value" in names else "no values"
        self._writer = StreamPieces(schema_of(names))

    async def begin(self) -> Slice:
        """Read the first piece before the answer begins: an error after its first byte could not be told any more."""
        self.first, self._ahead = await asyncio.to_thread(self._first)
        return self.first

    def _first(self) -> tuple[Slice, Buffers]:
        piece = self._read()
        self.end = piece.end if self._asked_end is None else min(piece.end, self._asked_end)
        return piece, self._writer.begin() + self._encoded(piece)

    async def pieces(self) -> AsyncIterator[Buffers]:
        ready: Buffers | None = self._ahead
        self._ahead = []  # what was sent is not kept: its reader may be a slow one
        while ready is not None:
            following = asyncio.ensure_future(asyncio.to_thread(self._next))
            try:
                yield ready
                ready = None
                ready = await following
            except TallystickError as error:
                # The answer has begun. It breaks off, and whoever asks for the rest is told why.
                log.warning("%s/%d: a bulk read ends at offset %d: %s", self._topic, self._queue, self._offset, error)
                raise CallerGone from error
            finally:
                following.cancel()
        yield self._writer.end()

    def _next(self) -> Buffers | None:
        """What lies at the next offset; nothing if there is no more."""
        if self._offset >= self.end:
            return None
        return self._encoded(self._read()) or None

    def _read(self) -> Slice:
        return self._door.read(self._topic, self._queue, self._offset, ROWS_AT_ONCE, BYTES_AT_ONCE, self._welcome)

    def _encoded(self, piece: Slice) -> Buffers:
        where = self._topic, self._called, self._offset, self.end, self._names
        batches, following = [], piece.next
        for one in piece.columns:
            try:
                batches.append(batch_of_columns(one, *where))
            except DamagedData:
                if not batches:
                    raise
                following = one.base  # what lies before it is sent first
                break
        if piece.chunks:
            batches.append(batch_of_chunks([_decode(chunk) for chunk in piece.chunks], *where))
        self._offset = following
        return [view for batch in batches if batch.num_rows for view in self._writer.batch(batch)]
