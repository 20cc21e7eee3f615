"""The two usual ways, each wrong in one place, to show what they leave behind.

* `plain-set`: whoever misses reads the row and sets the entry. A slow reader sets what is no longer true.
* `delete-after-commit`: the row is committed, then the entry is deleted. A crash between the two leaves the old value.
"""

import json
from contextlib import closing
from typing import Any

import redis
from cache import Load
from catalogue import Catalogue, Row, cache_key


class PlainCache:
    """Get, or load and set; without an owner."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def fetch(self, key: str, load: Load, *, strong: bool = False) -> Any:
        found = self._client.get(key)
        if found is not None:
            return json.loads(found)
        value = load()
        self._client.set(key, json.dumps(value))
        return value

    def delete(self, key: str) -> None:
        self._client.delete(key)

    def peek(self, key: str) -> Any:
        found = self._client.get(key)
        return None if found is None else json.loads(found)

    def close(self) -> None:
        pass  # there is nothing in the background


class DeleteAfterCommit(Catalogue):
    """Two steps, and nobody who remembers the second."""

    def write(self, product: int, price: int, *, wait: float = 10.0) -> Row:
        with closing(self.open()) as conn:
            row = self.change(conn, product, price)
            conn.commit()
        self.cache.delete(cache_key(product))
        return row
