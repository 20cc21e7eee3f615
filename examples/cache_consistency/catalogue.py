"""Products: rows in a database, copies in the cache, and one transaction for a change and the deletion of its copy."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import tallystick
from tallystick.barrier import create_tables

Row = dict[str, Any]
OpenDatabase = Callable[[], sqlite3.Connection]


class AnyCache(Protocol):
    def fetch(self, key: str, load: Callable[[], Any], *, strong: bool = False) -> Any: ...
    def delete(self, key: str) -> None: ...
    def peek(self, key: str) -> Any: ...
    def close(self) -> None: ...


def open_database(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=20)


def set_up(path: Path, products: int) -> None:
    with closing(open_database(path)) as conn:
        conn.execute("pragma journal_mode = wal")
        create_tables(conn)
        conn.execute("create table if not exists product (id integer primary key, price integer, version integer)")
        conn.executemany("insert or ignore into product values (?, 100, 1)", [(number,) for number in range(products)])
        conn.commit()


def cache_key(product: int) -> str:
    return f"product:{product}"


class Catalogue:
    """What a service does. `delete_url` is where the broker finds the service's own handler that deletes a copy."""

    def __init__(self, open_own: OpenDatabase, cache: AnyCache, ts: tallystick.Client, delete_url: str) -> None:
        self.open, self.cache, self.ts, self.delete_url = open_own, cache, ts, delete_url

    def read(self, product: int, *, strong: bool = False) -> Row:
        return self.cache.fetch(cache_key(product), lambda: self.load(product), strong=strong)

    def load(self, product: int) -> Row:
        with closing(self.open()) as conn:
            return self._row(conn, product)

    def write(self, product: int, price: int, *, wait: float = 10.0) -> Row:
        """Change the row. The call that deletes the copy is part of the transaction: it is made if and only if the row
        was changed, whoever dies. Returns when it was made, so that the user is told "done" only when it is;
        `CallsNotFinished` if that takes too long."""
        with closing(self.open()) as conn, self.ts.transaction(conn) as tx:
            row = self.change(conn, product, price)
            tx.call(self.delete_url, {"key": cache_key(product)})
            tx.commit(wait=wait)
        return row

    def change(self, conn: sqlite3.Connection, product: int, price: int) -> Row:
        conn.execute("update product set price = ?, version = version + 1 where id = ?", (price, product))
        return self._row(conn, product)

    def _row(self, conn: sqlite3.Connection, product: int) -> Row:
        found = conn.execute("select id, price, version from product where id = ?", (product,)).fetchone()
        return dict(zip(("id", "price", "version"), found, strict=True))
