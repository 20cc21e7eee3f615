"""Connections that a forked child has from its parent: one socket for two processes, whose answers get mixed up."""

from __future__ import annotations

import os
import time
from typing import Any
from weakref import WeakKeyDictionary

from tallystick.barrier.errors import UnsupportedConnection

_seen: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The process in which each of the drivers' connections was first used here."""

_forked_at = 0.0


def _forked() -> None:
    global _forked_at
    _forked_at = time.time()


os.register_at_fork(after_in_child=_forked)


def refuse_inherited(raw: Any, opened_at: float | None = None) -> None:
    """Raises `UnsupportedConnection` for one that was opened, or used here, before this process was forked."""
    here = os.getpid()
    if (opened_at is not None and opened_at < _forked_at) or _seen.setdefault(raw, here) != here:
        raise UnsupportedConnection(
            "this database connection was opened before the process was forked, and shares its socket with the parent. "
            "Open connections after the fork; with SQLAlchemy, call engine.dispose(close=False) in the child first"
        )
