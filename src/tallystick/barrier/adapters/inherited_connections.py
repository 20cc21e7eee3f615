"""Connections that a forked child has from its parent: one socket for two processes, whose answers get mixed up, or one
SQLite file whose locks the child does not have."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from tallystick.barrier.errors import UnsupportedConnection

_FILES = "/proc/self/fd"


class _Process:
    """A process; a child makes one of its own. (Numbers of processes are used again.)"""


_here = _Process()
_PARENT = _Process()
_forked_at = 0.0
_inherited_sockets: frozenset[int] = frozenset()
"""By inode, where the system tells: all that were open when this process was forked."""

_seen: WeakKeyDictionary[Any, _Process] = WeakKeyDictionary()
"""The process that each of the drivers' connections belongs to, as far as it was found out here."""


class _Mark:
    """A connection of sqlite3 cannot be referred to weakly, and ids are used again. So it is given this as a function
    of its own, which nobody calls: the mark is gone when the connection is."""

    __slots__ = ("__weakref__", "process")

    def __init__(self) -> None:
        self.process = _here

    def __call__(self) -> None: ...


_marks: WeakValueDictionary[int, _Mark] = WeakValueDictionary()


def _forked() -> None:
    global _here, _forked_at, _inherited_sockets
    _here, _forked_at, _inherited_sockets = _Process(), time.time(), frozenset(_open_sockets())


os.register_at_fork(after_in_child=_forked)


def refuse_inherited(raw: Any, opened_at: float | None = None) -> None:
    """Raises `UnsupportedConnection` for one that was opened, or used here, before this process was forked. `raw` is
    None where only the time is known."""
    if opened_at is not None and opened_at < _forked_at:
        raise _inherited()
    if raw is not None and _process_of(raw) is not _here:
        raise _inherited()


def refuse_inherited_file(connection: Any) -> None:
    """The same for sqlite3, where only one that was used here can be known: it tells neither its age nor its files."""
    mark = _marks.get(id(connection))
    if mark is None:
        mark = _marks[id(connection)] = _Mark()
        connection.create_function("tallystick_mark", 0, mark)
    if mark.process is not _here:
        raise _inherited()


def refuse_dead_thread(thread: threading.Thread) -> None:
    """The same for a connection that lives on a thread, which a child does not have."""
    if not thread.is_alive() and _forked_at:
        raise _inherited()


def _process_of(raw: Any) -> _Process:
    found = _seen.get(raw)
    if found is None:
        found = _seen[raw] = _PARENT if _socket_of(_kept_in(raw)) in _inherited_sockets else _here
    return found


def _socket_of(raw: Any) -> int | None:
    """The inode of the connection's socket, for psycopg, psycopg2, asyncpg and PyMySQL."""
    try:
        if hasattr(raw, "_transport"):
            return os.fstat(raw._transport.get_extra_info("socket").fileno()).st_ino
        return os.fstat((raw if hasattr(raw, "fileno") else raw._sock).fileno()).st_ino
    except Exception:
        return None  # closed, or of a driver that does not tell


# Where drivers of MySQL keep what has a file number; mysql.connector in C does not tell.
_KEEPERS: dict[str, Callable[[Any], Any]] = {
    "aiomysql": lambda raw: raw._writer.get_extra_info("socket"),
    "asyncmy": lambda raw: raw._transport.get_extra_info("socket"),
    "mysql": lambda raw: raw._socket.sock,
}


def _kept_in(raw: Any) -> Any:
    try:
        return _KEEPERS.get(type(raw).__module__.partition(".")[0], lambda raw: raw)(raw)
    except AttributeError:
        return None


def _open_sockets() -> set[int]:
    found = set()
    with contextlib.suppress(OSError):  # a system without the list
        for name in os.listdir(_FILES):
            with contextlib.suppress(OSError):  # the list's own file
                file = os.fstat(int(name))
                if stat.S_ISSOCK(file.st_mode):
                    found.add(file.st_ino)
    return found


def _inherited() -> UnsupportedConnection:
    return UnsupportedConnection(
        "this database connection was opened before the process was forked, and is the parent's, with its socket or "
        "its SQLite file. Open connections after the fork; with SQLAlchemy, call engine.dispose(close=False) in the "
        "child first; with Django, call connections.close_all() before the fork"
    )
