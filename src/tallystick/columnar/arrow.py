"""Arrow, where it is installed; and record batches as bytes that nobody has copied."""

from __future__ import annotations

from functools import cache
from typing import Any

from tallystick.core.errors import NotAllowed

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


@cache
def pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.ipc
        import xxhash  # noqa: F401 - what is stored is checked with it
    except ImportError as error:
        raise NotAllowed("this broker has no Arrow: install tallystick[arrow] where it runs") from error
    return pa


class _Collected:
    """A file for Arrow's writer, which keeps the buffers of a batch as they are."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    def write(self, piece: Any) -> int:
        seen = memoryview(piece)
        self.pieces.append(seen)
        return seen.nbytes

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> list[memoryview]:
        pieces, self.pieces = self.pieces, []
        return pieces


class StreamPieces:
    """An Arrow IPC stream, piece by piece. The columns are not copied: what is given out are views of the memory that
    the batches lie in."""

    def __init__(self, schema: Any) -> None:
        self._file = _Collected()
        self._sink = pyarrow().PythonFile(self._file, mode="w")
        self._writer = pyarrow().ipc.new_stream(self._sink, schema)

    def begin(self) -> list[memoryview]:
        """The schema, as far as Arrow has not kept it for the first batch."""
        return self._file.take()

    def batch(self, batch: Any) -> list[memoryview]:
        self._writer.write_batch(batch)
        return self._file.take()

    def end(self) -> list[memoryview]:
        self._writer.close()
        return self._file.take()
