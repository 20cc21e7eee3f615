"""Which of several stores a name belongs to: the same for everybody who knows the same stores."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def weight(place: str, name: str) -> bytes:
    """Rendezvous hashing: everyone who has the same places ranks them alike for the same name."""
    return hashlib.blake2b(f"{place}\n{name}".encode(), digest_size=8).digest()


def store_for(name: str, stores: Iterable[str]) -> str:
    """The store, by its id, that a key or a gid of the user's own making names."""
    return max(stores, key=lambda store: weight(store, name))
