"""Which of several stores a name belongs to: the same for everybody who knows the same stores."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def weight(place: str, name: str) -> bytes:
    """Rendezvous hashing: everyone who has the same places ranks them alike for the same name."""
    return hashlib.blake2b(f"{place}\n{name}".encode(), digest_size=8).digest()


def cluster_queue(inside: int, store: int, stores: int) -> int:
    """The number that a store's queue has in the cluster. -1 stays -1: a delayed message has no queue yet."""
    return inside * stores + store if inside >= 0 else inside


def store_for(name: str, stores: Iterable[str]) -> str:
    """The store that a key or a gid of the user's own making names. `stores` are all of them, in the order of their
    numbers: a store that comes to be known by another id, because it was copied into the cluster, moves no name."""
    return max(enumerate(stores), key=lambda store: weight(str(store[0]), name))[1]
