"""The order service: makes an order of each call, once, in a database of its own.

    python orders.py --port 8082 --database orders.db

The broker calls it until it has answered; so a call may come twice. The branch barrier, a row in the transaction of the
order, makes the second one do nothing. Calls that come at the same time share one transaction of the database.
"""

import argparse
import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from answering import Scope, Service
from stage.traps import Traps

from tallystick.barrier import create_tables
from tallystick.dtm import BranchBarrier

SUCCESS = b'{"dtm_result": "SUCCESS"}'


class Order(NamedTuple):
    barrier: BranchBarrier
    activity: str
    user: str


def open_database(path: Path) -> sqlite3.Connection:
    conn = sqlite3.connect(path, timeout=20, isolation_level=None, check_same_thread=False)
    conn.execute("pragma journal_mode = wal")
    conn.execute("pragma synchronous = full")
    return conn


def set_up(path: Path) -> None:
    conn = open_database(path)
    create_tables(conn)
    # No unique key: nothing but the barrier keeps an order from being made twice.
    conn.execute("create table if not exists orders (gid text, activity text, user text)")
    conn.close()


class Book:
    """The orders: one writer, one transaction for all that wait."""

    def __init__(self, path: Path, traps: Traps, careless: bool) -> None:
        self._conn = open_database(path)
        self._traps, self._careless = traps, careless
        self._waiting: list[tuple[Order, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def create(self, order: Order) -> None:
        """Returns when the order is durable, now or from an earlier call."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((order, stored))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        await stored

    async def _write(self) -> None:
        while self._waiting:
            some, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._store, [order for order, _ in some])
                error = None
            except sqlite3.Error as failure:
                error = failure
            for _, stored in some:
                stored.done() or (stored.set_exception(error) if error else stored.set_result(None))
        self._writer = None

    def _store(self, orders: list[Order]) -> None:
        conn = self._conn
        conn.execute("begin immediate")
        try:
            for order in orders:
                with order.barrier.once(conn) as first:
                    if first or self._careless:
                        row = (order.barrier.gid, order.activity, order.user)
                        conn.execute("insert into orders values (?, ?, ?)", row)
            conn.execute("commit")
        except BaseException:
            conn.execute("rollback")
            raise
        self._traps.spring("order-stored")

    def close(self) -> None:
        self._conn.close()


def service(book: Book) -> Service:
    async def post(scope: Scope, body: bytes) -> tuple[int, bytes]:
        wanted = json.loads(body)
        barrier = BranchBarrier.from_query(dict(parse_qsl(scope["query_string"].decode())))
        await book.create(Order(barrier, wanted["activity"], wanted["user"]))
        return 200, SUCCESS

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        yield
        book.close()

    return Service(post, life())


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes orders of calls, each once.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--database", type=Path, required=True, help="an SQLite file")
    parser.add_argument("--traps", type=Path, help="where kills at an exact moment are set")
    parser.add_argument("--without-barrier", action="store_true", help="break it: a call that comes twice counts twice")
    given = parser.parse_args()
    set_up(given.database)
    book = Book(given.database, Traps(given.traps), given.without_barrier)
    service(book).serve(given.port)


if __name__ == "__main__":
    main()
