"""Connections to one server, kept for the next caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from tallystick.store.shared.health import ServerHealth


class PooledConnection(Protocol):
    session: str  # its name at the server

    @property
    def awaited(self) -> int:
        """The number of the statement whose answer is awaited; 0 if there is none."""

    @property
    def lost(self) -> bool:
        """Whether an error has shown that the server is not reached over it."""

    def sever(self, reason: str) -> None:
        """Called by another thread: what waits for an answer raises an error with this reason."""

    def close(self) -> None: ...


C = TypeVar("C", bound=PooledConnection)


class Connections(Generic[C]):
    """One thread at a time uses a connection. None is used again after an error: an answer may still be on its way."""

    def __init__(
        self, connect: Callable[[], C], working: Callable[[C, Sequence[str]], Mapping[str, bool]], health: ServerHealth
    ) -> None:
        """`working` asks the server which of some sessions exist, and whether they work."""
        self._connect, self._working, self._health = connect, working, health
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._used: dict[C, _Use[C]] = {}
        self._life = 0  # a connection made in an earlier life is not kept
        health.add(self)

    @contextmanager
    def one(self) -> Iterator[C]:
        self._health.watch()
        with self._lock:
            life = self._life
            connection = self._idle.pop() if self._idle else None
            if connection is not None:
                self._used[connection] = _Use(connection)
        if connection is None:
            connection = self._new()
            with self._lock:
                self._used[connection] = _Use(connection)
        try:
            yield connection
        except BaseException:
            self._give_up(connection)
            raise
        with self._lock:
            del self._used[connection]
            if life == self._life:
                self._idle.append(connection)
                return
        _end(connection)

    def _new(self) -> C:
        with self._health.attempts.one():
            return self._connect()

    def _give_up(self, connection: C) -> None:
        with self._lock:  # from here on it cannot be severed
            del self._used[connection]
        lost = connection.lost
        _end(connection)
        if lost:
            self._health.suspect()

    def cut(self) -> None:
        """Connections in use are closed by their users: a driver must not lose one while it uses it."""
        self.drop_idle()

    # --- health ----------------------------------------------------------------------------------------------

    def drop_idle(self) -> None:
        with self._lock:
            self._life += 1
            dropped, self._idle = self._idle, []
        for connection in dropped:
            _end(connection)

    def silent(self, seconds: float) -> list[_Use[C]]:
        now = time.monotonic()
        with self._lock:
            waiting = [use for use in self._used.values() if use.waits(now)]
        return [use for use in waiting if use.silent_seconds >= seconds]

    def working(self, sessions: Sequence[str]) -> Mapping[str, bool]:
        """The new connection is kept if the server answers and no other is idle: a statement that is cut needs one."""
        life = self._life
        connection = self._new()
        try:
            found = self._working(connection, sessions)
        except BaseException:
            _end(connection)
            raise
        with self._lock:
            if life == self._life and not self._idle:
                self._idle.append(connection)
                return found
        _end(connection)
        return found


class _Use(Generic[C]):
    """A connection in the hands of a thread, as the checks have found it."""

    def __init__(self, connection: C) -> None:
        self._connection = connection
        self._awaited, self._since = 0, 0.0

    @property
    def session(self) -> str:
        return self._connection.session

    @property
    def silent_seconds(self) -> float:
        return time.monotonic() - self._since

    def waits(self, now: float) -> bool:
        """Whether a statement awaits its answer. Its time counts from the first check that finds it: setting a clock
        for each statement would cost every statement."""
        awaited = self._connection.awaited
        if awaited != self._awaited:
            self._awaited, self._since = awaited, now
        return awaited != 0

    def confirm(self) -> None:
        self._since = time.monotonic()

    def sever(self, reason: str) -> None:
        if self._awaited and self._connection.awaited == self._awaited:
            self._connection.sever(reason)


def _end(connection: PooledConnection) -> None:
    with suppress(Exception):  # it was broken, or it is now
        connection.close()
