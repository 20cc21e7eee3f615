"""Identifiers: unique without coordination, sortable by time where that helps, never reused."""

from __future__ import annotations

import os
import secrets
import socket
import time

_POOL: list[str] = []
_POOL_SIZE = 256
os.register_at_fork(after_in_child=_POOL.clear)  # a child must not hand out what its parent does


def _random_80_bits() -> str:
    """Twenty hex digits, drawn from the system in bulk: one call for each would cost more than the rest of a gid."""
    while True:
        try:
            return _POOL.pop()
        except IndexError:
            drawn = os.urandom(10 * _POOL_SIZE).hex()
            _POOL.extend(drawn[at : at + 20] for at in range(0, len(drawn), 20))


def new_gid(store: str = "") -> str:
    """A new gid: `<store>-<time><random>`. The prefix names the store that holds the transaction.

    80 random bits: no two clients meet, whatever their clocks say, and no gid is used twice.
    """
    unique = f"{time.time_ns() // 1_000_000:011x}{_random_80_bits()}"
    return f"{store}-{unique}" if store else unique


def new_nonce() -> str:
    """Drawn for one request and never again."""
    return _random_80_bits()


def store_of_gid(gid: str) -> str:
    """The store a gid names, or an empty string for a gid of the user's own making."""
    store, dash, unique = gid.partition("-")
    # What belongs to a transaction may have its gid and a word behind it: "...:commit".
    return store if dash and len(unique.partition(":")[0]) == 31 else ""


def new_store_id() -> str:
    """The name of a store, drawn once when its data directory is made."""
    return secrets.token_hex(4)


def new_member_id() -> str:
    """The name of one client process in its group, readable in an operator's list."""
    return f"{socket.gethostname()[:60]}.{os.getpid()}.{secrets.token_hex(4)}"


def new_lease_id() -> int:
    """A lease token: unguessable, so that a stale one never matches by chance."""
    return secrets.randbits(63)
