"""A consumer that keeps its place in its own database, in the transaction of each effect: in order, exactly once.

    tallystick serve &
    python examples/exactly_once_by_offset.py

The handler fails at one message the first time. The queue waits for it, and nothing behind it overtakes.
"""

import os
import sqlite3
import sys
import tempfile
import time

import tallystick
from tallystick.barrier import create_tables

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TALLYSTICK_URL", "http://127.0.0.1:7440")
NUMBERS = 20


def open_ledger() -> sqlite3.Connection:
    return sqlite3.connect("ledger.db")


def entries() -> list[int]:
    conn = open_ledger()
    found = [number for (number,) in conn.execute("select number from entry order by place")]
    conn.close()
    return found


def main() -> None:
    conn = open_ledger()
    create_tables(conn)
    conn.execute("create table entry (place integer primary key, number integer)")
    conn.commit()
    conn.close()
    failed = []
    with tallystick.Client(URL) as ts:
        ts.create_topic("example.ledger", queues=1)
        for number in range(NUMBERS):
            ts.send("example.ledger", {"number": number})

        @ts.subscribe("example.ledger", group="example.ledger-keeper", exactly_once=open_ledger, by="offset")
        def enter(message: tallystick.Message, conn: sqlite3.Connection) -> None:
            number = message.json()["number"]
            conn.execute("insert into entry (number) values (?)", (number,))
            if number == 7 and not failed:
                failed.append(number)
                raise RuntimeError("the entry of number 7 is rolled back")

        ts.start()
        deadline = time.monotonic() + 10
        while len(entries()) < NUMBERS and time.monotonic() < deadline:
            time.sleep(0.05)
    print(f"in order, each once: {entries() == list(range(NUMBERS))}; failures on the way: {len(failed)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        main()
