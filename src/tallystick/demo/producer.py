"""A process of bank A: debits accounts and sends transfers, each pair in one transaction.

    python -m tallystick.demo.producer --url http://127.0.0.1:7440 --bank a.db --share 0 --shares 2

It may be killed at any moment and started again: what is left to do is read from the bank's own database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import tallystick
from tallystick.demo.banks import PRODUCERS, TOPIC, Refused, Transfer, connect, debit, open_wishes, refuse
from tallystick.demo.worker import arguments, say, until_told

# Short: while a block waits for the broker it holds the bank's only write lock.
ANSWER_SECONDS = 2.0
IDLE_SECONDS = 0.2

Attempt = Callable[[tallystick.Client, sqlite3.Connection, Transfer], None]


def main() -> None:
    given = arguments("A process of bank A.")
    told = until_told()
    connection = connect(given.bank)
    attempt: Attempt = _send_first if given.sabotage else _together
    with tallystick.Client(
        given.url, group=PRODUCERS, database=lambda: connect(given.bank), timeout=ANSWER_SECONDS
    ) as client:
        while not told.is_set():
            for transfer in open_wishes(connection, given.share, given.shares):
                if told.is_set():
                    break
                _try(attempt, client, connection, transfer)
            # Its own share is done, but it stays to answer check-backs, also for those that were killed.
            told.wait(IDLE_SECONDS)
    connection.close()


def _try(attempt: Attempt, client: tallystick.Client, connection: sqlite3.Connection, transfer: Transfer) -> None:
    """One transfer. What fails for want of a broker or of a lock is tried again in the next round."""
    try:
        attempt(client, connection, transfer)
    except Refused:
        refuse(connection, transfer)
    except (tallystick.TallystickError, sqlite3.OperationalError) as error:
        say(f"transfer {transfer.id}: {error}")


def _together(client: tallystick.Client, connection: sqlite3.Connection, transfer: Transfer) -> None:
    with client.transaction(connection) as tx:
        debit(connection, transfer, tx.gid)
        tx.send(TOPIC, transfer._asdict(), key=str(transfer.payee))


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
