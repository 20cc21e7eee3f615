"""Connections to one server, kept for the next who needs one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Connections(Generic[C]):
    """Each is used by one thread at a time, and never again after an error: nobody knows what it still waits for."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._life = 0  # one made in an earlier life is not kept

    @contextmanager
    def one(self) -> Iterator[C]:
        with self._lock:
            life = self._life
            kept = self._idle.pop() if self._idle else None
        connection = self._connect() if kept is None else kept
        try:
            yield connection
        except BaseException:
            _end(connection)
            raise
        with self._lock:
            if life == self._life:
                self._idle.append(connection)
                return
        _end(connection)

    def cut(self) -> None:
        """Those in use are closed by their users: a driver must not lose one under its hands."""
        with self._lock:
            self._life += 1
            dropped, self._idle = self._idle, []
        for connection in dropped:
            _end(connection)


def _end(connection: Closable) -> None:
    with suppress(Exception):  # it was broken, or it is now
        connection.close()
