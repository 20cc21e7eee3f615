"""A script for cron: it changes the database and sends messages, once a day however often it is run.

    tallystick serve &
    python examples/plain_script.py           # runs the script three times for one day, as a nervous cron would

The gid is the name of the day's work. A second run finds that the first has committed; if the first was killed half
way, the second does the work, or finishes it. The script needs no lock and no table of its own for that.
"""

import datetime
import os
import signal
import sqlite3
import sys
import tempfile
import uuid

import tallystick
from tallystick.barrier import create_tables

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TALLYSTICK_URL", "http://127.0.0.1:7440")
TOPIC = "example.due-orders"
SHOP = uuid.uuid4().hex[:8]  # a real shop has a name; this one has a new database at each run, and so a new one


def open_shop() -> sqlite3.Connection:
    conn = sqlite3.connect("shop.db")
    create_tables(conn)
    conn.execute("create table if not exists orders (id integer primary key, due text, reminded integer default 0)")
    return conn


def remind(ts: tallystick.Client, conn: sqlite3.Connection, day: datetime.date) -> str:
    """The day's work: every order that is due is marked, and a message tells its customer."""
    try:
        with ts.transaction(conn, gid=f"reminders-{SHOP}-{day}", wait=True) as tx:
            due = conn.execute("select id from orders where due <= ? and not reminded", (day.isoformat(),)).fetchall()
            for (order,) in due:
                conn.execute("update orders set reminded = 1 where id = ?", (order,))
                tx.send(TOPIC, {"order": order, "day": day}, key=str(order))
    except tallystick.AlreadyCommitted:
        return "done before"
    return f"{len(due)} reminders"


def main() -> None:
    # SIGTERM would end the process at once; this way the client sends what it has before.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    conn = open_shop()
    conn.execute("insert into orders (due) values ('2026-05-01'), ('2026-05-01'), ('2026-06-01')")
    conn.commit()
    with tallystick.Client(URL, group="example.script", database=open_shop) as ts:
        for _ in range(3):
            print(remind(ts, conn, datetime.date(2026, 5, 1)))
        received = ts.receive(TOPIC, "example.script-reader", wait=10)
        ts.ack("example.script-reader", received)
    print(f"three runs, {len(received)} messages")
    conn.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        main()
