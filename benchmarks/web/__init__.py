"""Web services under load, with messages and without: requests a second, and the proof that both halves are there."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, Engine, create_engine, insert

from benchmarks.broker_counts import batch_requests, wait_until_visible
from benchmarks.processes import processor_seconds
from benchmarks.report import Figure
from benchmarks.rounds import Rounds, Turn, by_turns
from benchmarks.web import shop
from benchmarks.web.customers import Customers
from benchmarks.web.proof import orders_in_database, orders_in_topic, prove
from benchmarks.web.shop import Base, Product
from tallystick.barrier import create_tables
from tallystick.local import LocalService, module

if TYPE_CHECKING:
    from benchmarks.run import Bench
    from tallystick.local import LocalBroker

SECONDS, LEAST_SECONDS = 4.0, 0.3  # of one turn
SHARE = 0.6  # of the requests a second, at least, that is left with messages
STOP_SECONDS = 10.0
ROOT = Path(__file__).parents[2]


class Framework(Struct, frozen=True):
    """How a service is run, as in production."""

    name: str
    application: str
    command: list[str]


UVICORN = module("uvicorn", "--app-dir", str(ROOT), "--port", "{port}", "--no-access-log", "--log-level", "warning")
GUNICORN = module("gunicorn", "--chdir", str(ROOT), "--bind", "127.0.0.1:{port}", "--workers", "2", "--threads", "16")
FRAMEWORKS = (
    Framework("FastAPI, SQLAlchemy async", "fastapi_shop", UVICORN),
    Framework("Flask, SQLAlchemy, 2 workers", "flask_shop", [*GUNICORN, "--log-level", "warning"]),
)


def web(bench: Bench) -> None:
    """Requests a second of web services whose transactions send messages, as a share of those that send none."""
    if bench.postgresql is None:
        raise RuntimeError("the web services need a database: --postgresql DSN")
    database = sqlalchemy_url(bench.postgresql)
    with Customers() as customers:
        for framework in FRAMEWORKS:
            _compare(bench, framework, database, customers)


def sqlalchemy_url(dsn: str) -> URL:
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    user, password, host, port, name = map(parts.get, ("user", "password", "host", "port", "dbname"))
    return URL.create("postgresql+psycopg", user, password, host, int(port) if port else None, name)


def _compare(bench: Bench, framework: Framework, database: URL, customers: Customers) -> None:
    engine = create_engine(database)
    new_tables(engine)
    seconds = max(LEAST_SECONDS, SECONDS * min(1.0, bench.scale))
    with (
        bench.broker(framework.application) as broker,
        running(bench, framework, database, broker) as service,
    ):
        load = _Load(service, broker, framework.application, customers)
        ways = {way: load.turn(way, seconds) for way in ("without", "with")}
        for warm_up in [load.turn(way, max(LEAST_SECONDS, seconds / 4)) for way in ways]:
            warm_up()
        found = by_turns(ways)
        prove(load.orders, orders_in_database(engine), orders_in_topic(broker.url, load.topic))
    engine.dispose()
    _report(bench, framework.name, found)


def new_tables(engine: Engine) -> None:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(Product), [{"id": number, "price": 100 + number} for number in range(shop.PRODUCTS)])
    with engine.connect() as connection:
        create_tables(connection)


@contextmanager
def running(
    bench: Bench, framework: Framework, database: URL, broker: LocalBroker, more: Mapping[str, str] | None = None
) -> Iterator[LocalService]:
    """The service; it is asked to end, as whoever deploys it would, and so sends what it has left."""
    settings = {
        shop.DATABASE: database.render_as_string(hide_password=False),
        shop.BROKER: broker.url,
        shop.TOPIC: framework.application,
        **(more or {}),
    }
    command = [
        "env",
        *(f"{name}={value}" for name, value in settings.items()),
        *framework.command,
        f"benchmarks.web.{framework.application}:app",
    ]
    service = LocalService(framework.application, command, bench.directory / f"{framework.application}.log")
    service.start()
    try:
        yield service
    finally:
        service.terminate()
        service.end_by(time.monotonic() + STOP_SECONDS)


class _Load:
    """Rushes on a service, and the orders that were answered, by the way they were made."""

    def __init__(self, service: LocalService, broker: LocalBroker, topic: str, customers: Customers) -> None:
        self._service, self._broker, self._customers = service, broker, customers
        self._names = itertools.count()
        self.topic = topic
        self.orders: dict[str, set[str]] = {"with": set(), "without": set()}

    def turn(self, way: str, seconds: float) -> Callable[[], Turn]:
        def turn() -> Turn:
            requests, spent = batch_requests(self._broker.url), processor_seconds(self._service.pid)
            rush = self._customers.rush(self._service.url, f"/{way}", f"{way}-{next(self._names)}", seconds)
            spent = processor_seconds(self._service.pid) - spent
            self.orders[way] |= rush.orders
            if way == "with":
                wait_until_visible(self._broker.url, self.topic, len(self.orders[way]))
            requests = batch_requests(self._broker.url) - requests
            many = len(rush.orders)
            return Turn(rush.rate, rush.seconds, spent / many, requests / many)

        return turn


def _report(bench: Bench, name: str, found: Rounds) -> None:
    add, alone = bench.report.add, "without messages"
    without = found.median(lambda turns: turns["without"].rate)
    add(Figure(f"{name}: {alone}", without, "requests/s", ratio=without * bench.fdatasync, ratio_of="fdatasyncs/s"))
    add(
        Figure(
            f"{name}: with messages",
            found.median(lambda turns: turns["with"].rate),
            "requests/s",
            ratio=found.median(lambda turns: turns["with"].rate / turns["without"].rate),
            ratio_of=alone,
            ratio_target=SHARE,
        )
    )
    took = found.median(lambda turns: turns["with"].seconds)
    longer = found.median(lambda turns: turns["with"].seconds / turns["without"].seconds)
    add(Figure(f"{name}: with messages, median", took * 1e3, "ms", ratio=longer, ratio_of=alone))
    spent = found.median(lambda turns: turns["with"].processor)
    more = found.median(lambda turns: turns["with"].processor / turns["without"].processor)
    add(Figure(f"{name}: with messages, processor time", spent * 1e6, "us", ratio=more, ratio_of=alone))
    carried = found.median(lambda turns: 2 / turns["with"].requests)
    add(Figure(f"{name}: with messages, operations a request", carried, ""))
