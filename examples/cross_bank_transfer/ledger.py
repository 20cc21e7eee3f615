"""What both banks are: an account each, in an SQLite database of its own, and notes of what happened, for the picture.

No bank can look into the other one's database.
"""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tallystick.barrier import create_tables
from tallystick.dtm import Failure


class NotEnoughMoney(Failure):
    """The account would fall below zero."""


class Bank(sqlite3.Connection):
    """A connection that can be told to kill its process right after a commit: the worst moment there is."""

    after_commit: Callable[[], None] = staticmethod(lambda: None)

    def commit(self) -> None:
        super().commit()
        self.after_commit()


def open_bank(path: Path) -> Bank:
    return sqlite3.connect(path, timeout=20, factory=Bank)


def set_up(path: Path, owner: str, balance: int) -> None:
    with closing(open_bank(path)) as conn:
        create_tables(conn)
        conn.execute("create table account (owner text primary key, balance integer)")
        conn.execute("insert into account values (?, ?)", (owner, balance))
        conn.commit()


def adjust(conn: sqlite3.Connection, amount: int) -> bool:
    """Part of the caller's transaction."""
    changed = conn.execute("update account set balance = balance + ? where balance + ? >= 0", (amount, amount))
    if changed.rowcount != 1:
        raise NotEnoughMoney(f"there is less than {-amount}")
    return True


def balance(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=20)) as conn:
        return int(conn.execute("select balance from account").fetchone()[0])


def die() -> None:
    """As after `kill -9`, or a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


class Notes:
    """What happened, in order, from all processes: a line each, written before anything else happens."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, kind: str, text: str) -> None:
        line = json.dumps({"at": time.time(), "kind": kind, "text": text})
        with self.path.open("a") as file:
            file.write(line + "\n")

    def read(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
