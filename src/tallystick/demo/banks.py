"""The two banks' databases: what is in them, and what each side does to its own."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tallystick.barrier import create_tables

TOPIC = "transfers"
PRODUCERS = "bank-a"
CONSUMERS = "bank-b"
ACCOUNTS = 40
BALANCE = 2_000
BUSY_SECONDS = 20.0

_BANK_A = """
create table account (id integer primary key, balance integer not null check (balance >= 0));
create table wish (id integer primary key, account integer not null, payee integer not null, amount integer not null);
create table debit (id integer not null, gid text not null, amount integer not null);
create index debit_by_id on debit (id);
create table refusal (id integer primary key);
"""
# Nothing here keeps a transfer from being credited twice, on purpose: only the inbox does.
_BANK_B = """
create table account (id integer primary key, balance integer not null);
create table credit (id integer not null, amount integer not null, message_id text not null);
create index credit_by_id on credit (id);
"""


class Transfer(NamedTuple):
    id: int
    account: int
    payee: int
    amount: int


class DemoRefused(Exception):
    """The account does not hold the money."""


def connect(path: Path | str) -> sqlite3.Connection:
    """A connection as the services use it. It waits for the other writers of its bank."""
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)


@contextmanager
def looking(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", timeout=BUSY_SECONDS, isolation_level=None, uri=True)
    try:
        yield connection
    finally:
        connection.close()


def wishes(count: int, seed: int) -> list[Transfer]:
    """What customers want. The amounts add up to more than there is, so that some must be refused."""
    chance = random.Random(seed)  # noqa: S311 - a demo's numbers, the same for the same seed
    average = max(1, ACCOUNTS * BALANCE * 11 // (10 * count))
    return [
        Transfer(number, chance.randrange(ACCOUNTS), chance.randrange(ACCOUNTS), chance.randint(1, 2 * average))
        for number in range(count)
    ]


def found_bank_a(path: Path, transfers: list[Transfer]) -> int:
    """Make bank A's database; returns its money."""
    connection = _found(path, _BANK_A, BALANCE)
    connection.executemany("insert into wish values (?, ?, ?, ?)", transfers)
    connection.execute("commit")
    connection.close()
    return ACCOUNTS * BALANCE


def found_bank_b(path: Path) -> None:
    """Make bank B's database; it has no money yet."""
    connection = _found(path, _BANK_B, 0)
    connection.execute("commit")
    connection.close()


def _found(path: Path, tables: str, balance: int) -> sqlite3.Connection:
    connection = connect(path)
    connection.execute("pragma journal_mode = wal")  # so that the display reads while the services write
    create_tables(connection)
    connection.executescript(tables)
    connection.execute("begin immediate")
    connection.executemany("insert into account values (?, ?)", [(number, balance) for number in range(ACCOUNTS)])
    return connection


def open_wishes(connection: sqlite3.Connection, share: int, shares: int) -> list[Transfer]:
    """What of a producer's share is neither debited nor refused yet: all a restarted producer has to know."""
    rows = connection.execute(
        "select id, account, payee, amount from wish where id % ? = ? "
        "and id not in (select id from debit) and id not in (select id from refusal) order by id",
        (shares, share),
    )
    return [Transfer(*row) for row in rows]


def debit(connection: sqlite3.Connection, transfer: Transfer, gid: str) -> None:
    """Take the money from the account, or refuse. Part of the caller's transaction."""
    changed = connection.execute(
        "update account set balance = balance - ? where id = ? and balance >= ?",
        (transfer.amount, transfer.account, transfer.amount),
    )
    if changed.rowcount == 0:
        raise DemoRefused(f"account {transfer.account} does not hold {transfer.amount}")
    connection.execute("insert into debit values (?, ?, ?)", (transfer.id, gid, transfer.amount))


def refuse(connection: sqlite3.Connection, transfer: Transfer) -> None:
    """Tell the customer no. Once an account is short of money it stays so: only debits happen at bank A."""
    connection.execute("insert or ignore into refusal values (?)", (transfer.id,))


def credit(connection: sqlite3.Connection, transfer: Transfer, message_id: str) -> None:
    """Give the money to the payee, and note on whose word. Part of the caller's transaction."""
    connection.execute("update account set balance = balance + ? where id = ?", (transfer.amount, transfer.payee))
    connection.execute("insert into credit values (?, ?, ?)", (transfer.id, transfer.amount, message_id))


def money(path: Path) -> int:
    with looking(path) as connection:
        return int(connection.execute("select sum(balance) from account").fetchone()[0])


def amounts(path: Path, table: str) -> list[tuple[int, int]]:
    """Every (transfer id, amount) in `debit` or `credit`, doubles included."""
    with looking(path) as connection:
        return [(int(row[0]), int(row[1])) for row in connection.execute(f"select id, amount from {table}")]  # noqa: S608


def ids(path: Path, table: str) -> set[int]:
    with looking(path) as connection:
        return {int(row[0]) for row in connection.execute(f"select id from {table}")}  # noqa: S608


def debit_gids(path: Path) -> set[str]:
    with looking(path) as connection:
        return {str(row[0]) for row in connection.execute("select gid from debit")}


def count(path: Path, table: str) -> int:
    with looking(path) as connection:
        return int(connection.execute(f"select count(*) from {table}").fetchone()[0])  # noqa: S608
