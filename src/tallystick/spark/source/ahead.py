"""Reading ahead: a thread fetches and decodes the next record batches while Spark takes the last."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


def read_ahead(batches: Iterator[Any], give_up: Callable[[], None], most: int) -> Iterator[Any]:
    """The same batches, up to about `most` bytes of them before they are asked for.

    An error comes where it would have come: after the batches before it. Whoever stops early ends the thread as well:
    `give_up` is called, on the caller's thread, and has to end whatever the other waits for.
    """
    shelf = _Shelf(most)
    thread = threading.Thread(target=shelf.fill, args=(batches,), name="tallystick-ahead", daemon=True)
    thread.start()
    try:
        yield from shelf.taken()
    finally:
        if shelf.close():
            give_up()
        thread.join()


class _Shelf:
    """Batches between the thread that reads and the one that hands on, of bounded size: but one always has room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._batches: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def fill(self, batches: Iterator[Any]) -> None:
        error = None
        try:
            for batch in batches:
                if not self._put(batch):
                    break
        except BaseException as raised:  # handed on, whatever it is
            error = raised
        finally:
            with self._changed:
                self._ended, self._error = True, error
                self._changed.notify_all()

    def _put(self, batch: Any) -> bool:
        """False if nobody wants any more."""
        size = batch.nbytes
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._batches or self._bytes + size <= self._most)
            self._batches.append((batch, size))
            self._bytes += size
            self._changed.notify_all()
            return not self._closed

    def taken(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._ended)
                if not self._batches:
                    break
                batch, size = self._batches.popleft()
                self._bytes -= size
                self._changed.notify_all()
            yield batch
        if self._error is not None:
            raise self._error

    def close(self) -> bool:
        """Whether the thread that reads has not come to its end by itself."""
        with self._changed:
            self._closed = True
            self._batches.clear()
            self._changed.notify_all()
            return not self._ended
