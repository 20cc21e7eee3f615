"""Prefork servers: what a child process must not touch, and what it makes anew.

Sockets and the epoll set behind an event loop are shared with the parent after a fork. Closing or unregistering
one in the child can take it away from the parent, so a child leaves everything it inherited exactly as it is.
"""

from __future__ import annotations

import ctypes
import os
import weakref
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


def _after_fork_in_child() -> None:
    for client in list(_all):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
