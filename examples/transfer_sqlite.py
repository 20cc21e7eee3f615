"""Money between two banks, each with a SQLite database of its own.

tallystick serve &
python examples/transfer_sqlite.py
"""

import os
import sqlite3
import sys
import tempfile
import time

import tallystick
from tallystick.barrier import create_tables

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TALLYSTICK_URL", "http://127.0.0.1:7440")


def open_bank(name: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{name}.db")


def set_up(name: str, owner: str, balance: int) -> None:
    conn = open_bank(name)
    create_tables(conn)
    conn.execute("create table account (id text primary key, balance integer check (balance >= 0))")
    conn.execute("insert into account values (?, ?)", (owner, balance))
    conn.commit()
    conn.close()


def balance(name: str) -> int:
    conn = open_bank(name)
    (value,) = conn.execute("select balance from account").fetchone()
    conn.close()
    return int(value)


def transfer(ts: tallystick.Client, conn: sqlite3.Connection, amount: int) -> None:
    with ts.transaction(conn) as tx:
        conn.execute("update account set balance = balance - ? where id = 'alice'", (amount,))
        tx.send("example.transfers", {"to": "bob", "amount": amount}, key="bob")


def main() -> None:
    set_up("bank-a", "alice", 100)
    set_up("bank-b", "bob", 0)
    with tallystick.Client(URL, group="example.bank-a") as ts:
        conn = open_bank("bank-a")
        transfer(ts, conn, 30)
        try:
            transfer(ts, conn, 500)
        except sqlite3.IntegrityError as error:
            print(f"refused: {error}")
        conn.close()

        @ts.subscribe("example.transfers", group="example.bank-b", exactly_once=lambda: open_bank("bank-b"))
        def credit(message: tallystick.Message, conn: sqlite3.Connection) -> None:
            wanted = message.json()
            conn.execute("update account set balance = balance + ? where id = ?", (wanted["amount"], wanted["to"]))

        ts.start()
        deadline = time.monotonic() + 10
        while balance("bank-b") < 30 and time.monotonic() < deadline:
            time.sleep(0.05)
    print(f"alice has {balance('bank-a')}, bob has {balance('bank-b')}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        main()
