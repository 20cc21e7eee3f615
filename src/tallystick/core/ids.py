"""Identifiers: unique without coordination, sortable by time where that helps, never reused."""

from __future__ import annotations

import os
import secrets
import socket
import time


def new_gid(store: str = "") -> str:
    """A new gid: `<store>-<time><random>`. The prefix names the store that holds the transaction.

    80 random bits: no two clients meet, whatever their clocks say, and no gid is used twice.
    """
    unique = f"{time.time_ns() // 1_000_000:011x}{os.urandom(10).hex()}"
    return f"{store}-{unique}" if store else unique


def store_of_gid(gid: str) -> str:
    """The store a gid names, or an empty string for a gid of the user's own making."""
    store, dash, unique = gid.partition("-")
    return store if dash and len(unique) == 31 else ""


def new_store_id() -> str:
    """The name of a store, drawn once when its data directory is made."""
    return secrets.token_hex(4)


def new_member_id() -> str:
    """The name of one client process in its group, readable in an operator's list."""
    return f"{socket.gethostname()[:60]}.{os.getpid()}.{secrets.token_hex(4)}"


def new_lease_id() -> int:
    """A lease token: unguessable, so that a stale one never matches by chance."""
    return secrets.randbits(63)
