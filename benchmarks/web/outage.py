"""A web service while its broker is away, and while it hangs: how long requests take, and how many fail.

Half of the requests send messages and half do not. Both use the same pool of connections, so a block that waits for the
broker with its transaction open keeps a connection from the others.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from statistics import quantiles
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
from msgspec import Struct
from sqlalchemy import create_engine

from benchmarks.report import Figure
from benchmarks.web import GUNICORN, Framework, new_tables, running, sqlalchemy_url
from benchmarks.web.shop import POOL, PRODUCTS

if TYPE_CHECKING:
    from benchmarks.run import Bench
    from tallystick.local import LocalBroker

SECONDS, LEAST_SECONDS = 60.0, 2.0  # of each outage
WARM_SECONDS = 2.0
BACK_SECONDS = 30.0
CUSTOMERS = 16
CONNECTIONS = 8
"""In the service's pool: less than its threads, as in most services."""
PAUSE_SECONDS = 0.02
REQUEST_SECONDS = 60.0
LOOK_SECONDS = 0.05
SERVICE = Framework("Flask, SQLAlchemy, 16 threads", "flask_shop", [*GUNICORN, "--workers", "1", "--threads", "16"])

LONGEST = (
    "select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::float from pg_stat_activity "
    "where datname = current_database() and state = 'idle in transaction'"
)


class Asked(Struct, frozen=True):
    """One request of a customer."""

    path: str
    began: float
    seconds: float
    worked: bool


def outage(bench: Bench) -> None:
    """A web service with messages in half of its requests, while the broker is killed, and while it is stopped."""
    if bench.postgresql is None:
        raise RuntimeError("the web service needs a database: --postgresql DSN")
    _measure(bench, bench.postgresql, "broker killed", lambda broker: broker.kill(), lambda broker: broker.start())
    _measure(bench, bench.postgresql, "broker hangs", lambda broker: broker.pause(), lambda broker: broker.resume())


def _measure(
    bench: Bench,
    dsn: str,
    name: str,
    break_it: Callable[[LocalBroker], None],
    bring_it_back: Callable[[LocalBroker], None],
) -> None:
    seconds = max(LEAST_SECONDS, SECONDS * bench.scale)
    database = sqlalchemy_url(dsn)
    engine = create_engine(database)
    new_tables(engine)
    engine.dispose()
    with (
        bench.broker(f"outage-{name.replace(' ', '-')}") as broker,
        running(bench, SERVICE, database, broker, {POOL: str(CONNECTIONS)}) as service,
        _watched(dsn) as ages,
        _customers(service.url) as asked,
    ):
        time.sleep(WARM_SECONDS)
        began = time.perf_counter()
        break_it(broker)
        time.sleep(seconds)
        bring_it_back(broker)
        back = time.perf_counter()
        again = _first_with_messages(asked, back)
    meanwhile = [one for one in asked if one.began < back and one.began + one.seconds > began]
    _report(bench, name, meanwhile, max(ages, default=0.0), again - back)


def _first_with_messages(asked: list[Asked], since: float) -> float:
    """When the first request with messages worked again."""
    deadline = since + BACK_SECONDS
    while time.perf_counter() < deadline:
        for one in tuple(asked):
            if one.path == "/with" and one.began >= since and one.worked:
                return one.began + one.seconds
        time.sleep(LOOK_SECONDS)
    return deadline


@contextlib.contextmanager
def _watched(dsn: str) -> Iterator[list[float]]:
    """The age of the oldest transaction that waits for its client, looked at again and again."""
    ages: list[float] = []
    ends = threading.Event()

    def look() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not ends.wait(LOOK_SECONDS):
                row = connection.execute(LONGEST).fetchone()
                ages.append(row[0] if row else 0.0)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield ages
    finally:
        ends.set()
        thread.join()


@contextlib.contextmanager
def _customers(url: str) -> Iterator[list[Asked]]:
    """Threads that order, with messages and without in turn; every answer."""
    asked: list[Asked] = []
    ends = threading.Event()
    names = itertools.count()

    def customer(number: int) -> None:
        with contextlib.closing(_Connection(url)) as connection:
            for turn in itertools.count(number):
                if ends.wait(PAUSE_SECONDS):
                    return
                path = "/with" if turn % 2 else "/without"
                began = time.perf_counter()
                worked = connection.order(path, f"{path[1:]}-{next(names)}", turn % PRODUCTS)
                asked.append(Asked(path, began, time.perf_counter() - began, worked))

    threads = [threading.Thread(target=customer, args=(number,)) for number in range(CUSTOMERS)]
    for thread in threads:
        thread.start()
    try:
        yield asked
    finally:
        ends.set()
        for thread in threads:
            thread.join()


class _Connection:
    """One customer's way to the service; opened again after an error."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._http = http.client.HTTPConnection(place.hostname or "", place.port, timeout=REQUEST_SECONDS)

    def order(self, path: str, name: str, product: int) -> bool:
        body = json.dumps({"id": name, "product": product, "quantity": 2})
        try:
            self._http.request("POST", path, body, {"Content-Type": "application/json"})
            answer = self._http.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self._http.close()
            return False
        return answer.status == 200

    def close(self) -> None:
        self._http.close()


def _report(bench: Bench, name: str, asked: list[Asked], longest: float, back: float) -> None:
    add = bench.report.add
    for path, what in (("/without", "without messages"), ("/with", "with messages")):
        these = [one for one in asked if one.path == path]
        cuts = quantiles([one.seconds for one in these], n=100, method="inclusive")
        failed = sum(not one.worked for one in these) / len(these)
        add(Figure(f"{name}: {what}, requests", len(these), ""))
        add(Figure(f"{name}: {what}, failed", failed * 100, "%", *((0.0, True) if path == "/without" else ())))
        add(Figure(f"{name}: {what}, median", cuts[49] * 1e3, "ms"))
        add(Figure(f"{name}: {what}, 99 %", cuts[98] * 1e3, "ms"))
        add(Figure(f"{name}: {what}, longest", max(one.seconds for one in these), "s"))
    add(Figure(f"{name}: longest transaction", longest, "s"))
    add(Figure(f"{name}: with messages again after", back, "s"))
