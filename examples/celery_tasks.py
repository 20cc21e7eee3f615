"""Celery tasks whose database work and messages are one, and that do nothing twice however often they are delivered.

    pip install . celery                      # in a checkout
    tallystick serve &
    python examples/celery_tasks.py           # a worker of two processes, five tasks, each of them delivered twice

Each task is a block under a gid that is made from the task's id, which a retry and a redelivery keep. If a delivery was
killed after its commit, the next one finds that commit and does nothing; if it was killed before, nothing was done, and
the next one does it. So tasks may be acknowledged late, and be given to another process when theirs is killed.

In production: `celery -A celery_tasks worker`, with Celery's own broker in CELERY_BROKER_URL. (Here it is a directory.)
"""

import functools
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from celery import Celery, Task
from celery.signals import worker_process_init, worker_process_shutdown

import tallystick
from tallystick.barrier import create_tables

URL = os.environ.get("TALLYSTICK_URL", "http://127.0.0.1:7440")
TOPIC = "example.charges"
MOST_NAMES = 5
DELIVERIES = [*range(5), *range(5)]


def open_shop() -> sqlite3.Connection:
    return sqlite3.connect("shop.db", timeout=30)


@functools.cache
def client() -> tallystick.Client:
    """One for each process. With `database` it answers for those that were killed, too."""
    return tallystick.Client(URL, group="example.celery-shop", database=open_shop)


app = Celery("celery_tasks", broker=os.environ.get("CELERY_BROKER_URL", "filesystem://"))
app.conf.update(
    task_acks_late=True,  # acknowledged when it is done, not when it begins
    task_reject_on_worker_lost=True,  # a task whose process was killed goes to another one
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)
if app.conf.broker_url == "filesystem://":
    app.conf.broker_transport_options = {
        "data_folder_in": "tasks",
        "data_folder_out": "tasks",
        "control_folder": "tasks",
    }


@worker_process_init.connect
def begin(**_: object) -> None:
    """In each process of the pool, after its fork: answer for others from now on, and not only from the first task on.

    A service with an engine of SQLAlchemy calls `engine.dispose(close=False)` here.
    """
    client()


@worker_process_shutdown.connect
def end(**_: object) -> None:
    """Tell the broker of the last commits now: a process of the pool ends without the usual clean-up."""
    client().close()


def once(name: str, work: Callable[[sqlite3.Connection, tallystick.Transaction], None]) -> str:
    """Do something and send its messages, or find that an earlier attempt under this name has."""
    conn = open_shop()
    try:
        for number in range(1, MOST_NAMES + 1):
            try:
                with client().transaction(conn, gid=f"{name}.{number}") as tx:
                    work(conn, tx)
                return "done"
            except tallystick.AlreadyCommitted:
                return "done before"
            except tallystick.TransactionFailed:
                continue  # an attempt was killed before its commit, and rolled back for good: under the next name
        raise RuntimeError(f"{name}: {MOST_NAMES} attempts were rolled back")
    finally:
        conn.close()


@app.task(
    name="celery_tasks.charge",
    bind=True,
    autoretry_for=(tallystick.BrokerUnavailable, tallystick.OutcomeUnknown),
    retry_backoff=True,
    max_retries=None,
)
def charge(self: Task, order: int, amount: int) -> str:
    def work(conn: sqlite3.Connection, tx: tallystick.Transaction) -> None:
        conn.execute("insert into charges (order_number, amount) values (?, ?)", (order, amount))
        tx.send(TOPIC, {"order": order, "amount": amount})

    return once(f"celery-{self.request.id or uuid4()}", work)  # a direct call of the function is no task, and has no id


def set_up() -> None:
    Path("tasks").mkdir(exist_ok=True)
    conn = open_shop()
    create_tables(conn)
    conn.execute("create table if not exists charges (order_number integer, amount integer)")
    conn.commit()
    conn.close()
    client().create_topic(TOPIC)


def received() -> list[int]:
    """The orders of the messages that are there now."""
    messages = client().receive(TOPIC, "example.celery-reader", wait=1)
    client().ack("example.celery-reader", messages)
    return [message.json()["order"] for message in messages]


def main() -> None:
    set_up()
    options = ["--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "ERROR"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "--quiet", "-A", "celery_tasks", "worker", *options],
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parent.resolve()}:{os.environ.get('PYTHONPATH', '')}"},
    )
    orders: list[int] = []
    try:
        for order in DELIVERIES:  # under the same id: what a redelivery is
            charge.apply_async((order, 30), task_id=f"{Path.cwd().name}-{order}")
        while len(orders) < len(set(DELIVERIES)) or list(Path("tasks").glob("*.celery.msg")):
            orders += received()
    finally:
        worker.terminate()  # it finishes the tasks at hand
        worker.wait()
    orders += received()  # had any been sent twice
    conn = open_shop()
    (charges,) = conn.execute("select count(*) from charges").fetchone()
    conn.close()
    client().close()
    print(f"{len(DELIVERIES)} deliveries of 5 tasks: {charges} charges, messages for the orders {sorted(orders)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        main()
