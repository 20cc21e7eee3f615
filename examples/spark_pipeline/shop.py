"""The shop: takes orders, and sends a message about each in the transaction that stores it.

    python shop.py http://127.0.0.1:7440 shop.db

Kill it at any moment and start it again. With `--closed` it takes no more orders and only keeps time going.
"""

import argparse
import random
import signal
import sqlite3
import threading

import tallystick
from tallystick.barrier import create_tables

PRICES = {"apples": 40, "bread": 320, "cheese": 890, "dates": 510}  # in cents: sums of them are exact
PAUSE_SECONDS = 0.02
TICK_SECONDS = 0.5


class Declined(Exception):
    """The customer's card was refused; the order is off."""


def open_shop(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=20)


def set_up(path: str) -> None:
    conn = open_shop(path)
    conn.execute("pragma journal_mode = wal")
    create_tables(conn)
    # Nothing here keeps an order from being counted twice elsewhere; that is what the rest of the pipeline is for.
    conn.execute("create table if not exists orders (number integer primary key, product text, cents integer)")
    conn.commit()
    conn.close()


def sell(ts: tallystick.Client, conn: sqlite3.Connection) -> None:
    """One order: a row and a message, or neither."""
    product = random.choice(list(PRICES))  # noqa: S311
    cents = PRICES[product] * random.randint(1, 5)  # noqa: S311
    with ts.transaction(conn) as tx:
        row = conn.execute("insert into orders (product, cents) values (?, ?)", (product, cents))
        tx.send("orders", {"number": row.lastrowid, "product": product, "cents": cents}, key=product)
        if random.random() < 0.1:  # noqa: S311
            raise Declined(f"order {row.lastrowid}: no row and no message stay behind")


def tick(ts: tallystick.Client, conn: sqlite3.Connection) -> None:
    """A message without an order. Spark closes a time window when a later message comes: this is one."""
    with ts.transaction(conn) as tx:
        tx.send("orders", {"tick": True})


def main() -> None:
    parser = argparse.ArgumentParser(description="A shop that sends a message about each order.")
    parser.add_argument("url", help="the broker")
    parser.add_argument("database", help="the shop's own database, an SQLite file")
    parser.add_argument("--closed", action="store_true", help="take no orders, only send ticks")
    given = parser.parse_args()
    set_up(given.database)
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())  # asked to end, it finishes what it has begun
    conn = open_shop(given.database)
    # `database` lets the client answer the broker's questions: did this transaction commit?
    with tallystick.Client(given.url, group="shop", database=lambda: open_shop(given.database), timeout=2) as ts:
        while not told.wait(TICK_SECONDS if given.closed else PAUSE_SECONDS):
            try:
                tick(ts, conn) if given.closed else sell(ts, conn)
            except (Declined, tallystick.TallystickError) as error:
                print(error, flush=True)
    conn.close()


if __name__ == "__main__":
    main()
