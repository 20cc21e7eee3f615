"""A process of bank A: debits accounts and sends transfers, each pair in one transaction.

    python -m tallystick.demo.producer --url http://127.0.0.1:7440 --bank a.db --share 0 --shares 2

It may be killed at any moment and started again: what is left to do is read from the bank's own database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event

import tallystick
from tallystick.demo.banks import PRODUCERS, TOPIC, DemoRefused, Transfer, connect, debit, open_wishes, refuse
from tallystick.demo.worker import arguments, say, until_told

# Short: while a block waits for the broker it holds the bank's only write lock.
ANSWER_SECONDS = 2.0
IDLE_SECONDS = 0.2
THREADS = 3

Attempt = Callable[[tallystick.Client, sqlite3.Connection, Transfer], None]


def main() -> None:
    given = arguments("A process of bank A.")
    told = until_told()
    client = tallystick.Client(given.url, group=PRODUCERS, database=lambda: connect(given.bank), timeout=ANSWER_SECONDS)

    def work(thread: int) -> None:
        """One of several threads, each with a connection and a share of the transfers of its own."""
        try:
            with closing(connect(given.bank)) as connection:
                _work(client, connection, given.share * THREADS + thread, given.shares * THREADS, given.sabotage, told)
        finally:
            told.set()

    with client, ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, thread) for thread in range(THREADS)]:
            done.result()


def _work(
    client: tallystick.Client, connection: sqlite3.Connection, share: int, shares: int, wrong: bool, told: Event
) -> None:
    while not told.is_set():
        for transfer in open_wishes(connection, share, shares):
            if told.is_set():
                return
            order = _prepared_early if transfer.id % 2 else _prepared_late
            _try(_send_first if wrong else order, client, connection, transfer)
        # Its own share is done, but it stays to answer check-backs, also for those that were killed.
        told.wait(IDLE_SECONDS)


def _try(attempt: Attempt, client: tallystick.Client, connection: sqlite3.Connection, transfer: Transfer) -> None:
    """One transfer. What fails for want of a broker or of a lock is tried again in the next round."""
    try:
        attempt(client, connection, transfer)
    except DemoRefused:
        refuse(connection, transfer)
    except (tallystick.TallystickError, sqlite3.OperationalError) as error:
        say(f"transfer {transfer.id}: {error}")


def _prepared_late(client: tallystick.Client, connection: sqlite3.Connection, transfer: Transfer) -> None:
    """The usual order: the message goes to the broker just before the local commit."""
    with client.transaction(connection) as tx:
        debit(connection, transfer, tx.gid)
        tx.send(TOPIC, transfer._asdict(), key=str(transfer.payee))


def _prepared_early(client: tallystick.Client, connection: sqlite3.Connection, transfer: Transfer) -> None:
    """The other order: first the message, then the local transaction, which so holds the lock for a shorter time."""
    with client.transaction(connection, prepare="early") as tx:
        tx.send(TOPIC, transfer._asdict(), key=str(transfer.payee))
        tx.prepare()
        debit(connection, transfer, tx.gid)


def _send_first(client: tallystick.Client, connection: sqlite3.Connection, transfer: Transfer) -> None:
    """The mistake that transactions are for: a message that is out before its change is committed."""
    client.send(TOPIC, transfer._asdict(), key=str(transfer.payee))
    connection.execute("begin immediate")
    try:
        debit(connection, transfer, f"none-{transfer.id}")
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")


if __name__ == "__main__":
    main()
