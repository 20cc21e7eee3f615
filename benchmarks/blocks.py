"""`with ts.transaction(conn)` beside the same business transaction without messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tallystick import Client

Connect = Callable[[], Any]
SPEND = {
    "?": "update account set balance = balance - 1 where id = ?",
    "%s": "update account set balance = balance - 1 where id = %s",
}


def business_only(connect: Connect, mark: str, transactions: int, threads: int) -> float:
    """Transactions a second that only change the database."""

    def work(account: int) -> None:
        connection = connect()
        try:
            for _ in range(transactions // threads):
                cursor = connection.cursor()
                cursor.execute(SPEND[mark], (account,))
                connection.commit()
        finally:
            connection.close()

    return _rate(work, transactions, threads)


def with_messages(client: Client, connect: Connect, mark: str, transactions: int, threads: int, mode: str) -> float:
    """The same, with one message each."""

    def work(account: int) -> None:
        connection = connect()
        try:
            for _ in range(transactions // threads):
                with client.transaction(connection, mode=mode) as tx:  # type: ignore[arg-type]
                    connection.cursor().execute(SPEND[mark], (account,))
                    tx.send("bench-blocks", b"x" * 1024, key=str(account))
        finally:
            connection.close()

    return _rate(work, transactions, threads)


def _rate(work: Callable[[int], None], transactions: int, threads: int) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return transactions / (time.perf_counter() - began)
