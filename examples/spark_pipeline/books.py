"""The books: applies each message of `revenue` exactly once to a database of its own.

    python books.py http://127.0.0.1:7440 books.db

Kill it at any moment and start it again: what it has booked it does not book twice, and it misses nothing.
"""

import argparse
import sqlite3
import time
from contextlib import closing

import tallystick
from tallystick.barrier import create_tables


def open_books(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=20)


def set_up(path: str) -> None:
    with closing(open_books(path)) as conn:
        conn.execute("pragma journal_mode = wal")
        create_tables(conn)
        # No unique key: nothing but the inbox keeps a message from being booked twice.
        conn.execute(
            "create table if not exists booking "
            "(message_id text, product text, begin_ms integer, orders integer, cents integer)"
        )
        conn.execute("create table if not exists total (product text primary key, orders integer, cents integer)")
        conn.commit()


def book(message: tallystick.Message, conn: sqlite3.Connection) -> None:
    """The effect of one message. It commits together with the inbox row that says it has happened."""
    result = message.json()
    product, orders, cents = result["product"], result["orders"], result["cents"]
    conn.execute("insert into booking values (?, ?, ?, ?, ?)", (message.id, product, result["begin"], orders, cents))
    conn.execute(
        "insert into total values (?, ?, ?) "
        "on conflict (product) do update set orders = orders + excluded.orders, cents = cents + excluded.cents",
        (product, orders, cents),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Books of what the shop earns.")
    parser.add_argument("url", help="the broker")
    parser.add_argument("database", help="the books, an SQLite file")
    parser.add_argument("--without-inbox", action="store_true", help="break it: the effect without the inbox row")
    given = parser.parse_args()
    set_up(given.database)

    def book_apart(message: tallystick.Message) -> None:
        """The mistake that the inbox is for: the effect is committed, then somebody is told."""
        with closing(open_books(given.database)) as conn:
            book(message, conn)
            conn.commit()
        time.sleep(0.3)  # there is always some time between the two; more of it makes a kill hit it

    with tallystick.Client(given.url) as ts:
        # A message in the hands of a consumer that was killed is given out again after `invisible` seconds.
        if given.without_inbox:
            ts.subscribe("revenue", group="books", invisible=3)(book_apart)
        else:
            ts.subscribe("revenue", group="books", invisible=3, exactly_once=lambda: open_books(given.database))(book)
        ts.run()


if __name__ == "__main__":
    main()
