"""Outbox mode: the messages wait in the producer's own database until the broker has them.

    tallystick serve &
    python examples/outbox.py

A process commits a transfer and is killed before it can send anything. The row is in the outbox of the bank's database;
another process of the service finds it there (after five seconds, which the first one had to send it itself) and sends
it. No broker was needed for the commit, and nobody had to be asked.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

import tallystick
from tallystick.barrier import create_tables

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TALLYSTICK_URL", "http://127.0.0.1:7440")


class DiesAfterCommit(sqlite3.Connection):
    """A connection that kills its own process as soon as a commit is done."""

    def commit(self) -> None:
        super().commit()
        os.kill(os.getpid(), signal.SIGKILL)


def open_bank() -> sqlite3.Connection:
    return sqlite3.connect("bank.db")


def waiting() -> int:
    conn = open_bank()
    (count,) = conn.execute("select count(*) from tallystick_outbox").fetchone()
    conn.close()
    return int(count)


def set_up() -> None:
    conn = open_bank()
    create_tables(conn)
    conn.execute("create table account (id text primary key, balance integer)")
    conn.execute("insert into account values ('alice', 100)")
    conn.commit()
    conn.close()


def transfer(ts: tallystick.Client, conn: sqlite3.Connection) -> None:
    with ts.transaction(conn, mode="outbox") as tx:
        conn.execute("update account set balance = balance - 30 where id = 'alice'")
        tx.send("example.outbox", {"to": "bob", "amount": 30})


def main() -> None:
    set_up()
    subprocess.run([sys.executable, __file__, URL, "die"])
    print(f"killed after its commit; rows in the outbox: {waiting()}")
    with tallystick.Client(URL, database=open_bank) as ts:
        (message,) = ts.receive("example.outbox", "example.reader", wait=30)
        ts.ack("example.reader", message)
        while waiting():
            time.sleep(0.05)
    print(f"sent by another process: {message.text}; rows in the outbox: {waiting()}")


if __name__ == "__main__":
    if sys.argv[2:] == ["die"]:
        transfer(tallystick.Client(URL), sqlite3.connect("bank.db", factory=DiesAfterCommit))
    with tempfile.TemporaryDirectory() as directory:
        __file__ = os.path.abspath(__file__)
        os.chdir(directory)
        main()
