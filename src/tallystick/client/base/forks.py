"""Prefork servers: what a child process must not touch, and what it makes anew.

Sockets and the epoll set behind an event loop are shared with the parent after a fork. Closing or unregistering
one in the child can take it away from the parent, so a child leaves everything it inherited exactly as it is.

SQLite's locks are worse: a child that inherits one can never give it back. So a fork waits until no thread of ours is
using a database, and none begins while it happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Protocol


class Forkable(Protocol):
    def after_fork(self) -> None:
        """Forget, in the child, whatever belongs to the parent's threads and sockets."""


_all: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(client: Forkable) -> None:
    """Have `after_fork` called in every child."""
    _all.add(client)


def never_destroy(thing: Any) -> None:
    """Keep an inherited object for ever, past the interpreter's own clean-up at exit: its destructor would close."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class _Gate:
    """Lets either forks or our threads' database work through, not both at once."""

    PATIENCE_SECONDS = 5.0  # a handler that works for longer must not keep a server from starting its workers

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._forking = False
        self._mine = threading.local()

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._working += 1
        self._mine.count = getattr(self._mine, "count", 0) + 1
        try:
            yield
        finally:
            self._mine.count -= 1
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def close(self) -> None:
        mine = getattr(self._mine, "count", 0)  # a handler that forks does not wait for itself
        with self._changed:
            self._forking = True
            self._changed.wait_for(lambda: self._working <= mine, self.PATIENCE_SECONDS)

    def open(self) -> None:
        with self._changed:
            self._forking = False
            self._changed.notify_all()


_gate = _Gate()


def database_work() -> contextlib.AbstractContextManager[None]:
    """Around everything that one of the client's own threads does with a database."""
    return _gate.work()


def _after_fork_in_child() -> None:
    global _gate
    _gate = _Gate()  # the threads that the old one counts exist in the parent only
    for client in list(_all):
        client.after_fork()


os.register_at_fork(
    before=lambda: _gate.close(), after_in_parent=lambda: _gate.open(), after_in_child=_after_fork_in_child
)
