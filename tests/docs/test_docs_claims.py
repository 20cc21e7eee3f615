"""Claims of the pages that neither a block nor another test shows."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from doc_pages import ROOT

from brokers import BrokerProcess, running_broker
from eventually import eventually
from servers import Server
from tallystick import CheckBack, Client, outgoing
from tallystick.barrier import create_tables
from tallystick.barrier.adapters.sqlalchemy import _DRIVERS
from tallystick.broker.alerts import ALERTING

LONG_POLL = 60.0
SOON = 30.0  # much less than a long poll, much more than a busy machine needs


def _took(work: Callable[[], Any], meanwhile: Callable[[], None]) -> tuple[Any, float]:
    """The result of `work` and how long it took after `meanwhile` was done beside it."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    time.sleep(0.3)  # so that it waits by now
    began = time.monotonic()
    meanwhile()
    thread.join()
    return found[0], time.monotonic() - began


def test_the_page_lists_the_sqlalchemy_drivers_that_are_supported() -> None:
    """Those named after `SQLAlchemy drivers:` up to the end of the sentence, and no others."""
    page = (ROOT / "docs/reference/sql.md").read_text()
    listed = re.search(r"SQLAlchemy drivers: (.*?)\. Other drivers", page, re.DOTALL)
    assert listed is not None
    in_brackets = re.findall(r"`sqlite` \((.*?)\)", listed[1])[0].split(", ")
    assert sorted([*in_brackets, *re.findall(r"`\w+\+(\w+)`", listed[1])]) == sorted(_DRIVERS)


def test_a_message_given_back_reaches_a_consumer_that_waits_already(broker: BrokerProcess) -> None:
    with Client(broker.url) as ts:
        ts.send("claims.nack", "again")
        (first,) = ts.receive("claims.nack", "workers", wait=SOON)
        again, took = _took(
            lambda: ts.receive("claims.nack", "workers", wait=LONG_POLL),
            lambda: ts.nack("workers", first, delay=0.2),
        )
    assert [(one.text, one.attempt) for one in again] == [("again", 2)]
    assert 0.1 < took < SOON


def test_the_next_of_a_key_reaches_a_consumer_that_waits_already(broker: BrokerProcess) -> None:
    with Client(broker.url) as ts:
        for number in (1, 2):
            ts.send("claims.ordered", str(number), key="one")
        (first,) = ts.receive("claims.ordered", "workers", wait=SOON, ordered=True)
        following, took = _took(
            lambda: ts.receive("claims.ordered", "workers", wait=LONG_POLL, ordered=True),
            lambda: ts.ack("workers", first),
        )
    assert [one.text for one in following] == ["2"]
    assert took < SOON


@pytest.mark.postgresql
def test_select_and_insert_are_enough_for_a_broker_that_reads_the_barrier(postgres: Server) -> None:
    database = postgres.new_database()
    with closing(postgres.connect(database)) as connection:
        create_tables(connection)
    for statement in (
        "create role checker login password 'only'",
        "grant select, insert on tallystick_barrier to checker",
    ):
        postgres.execute(statement, database)
    dsn = f"postgresql://checker:only@{postgres.host}:{postgres.port}/{database}"
    with pytest.raises(psycopg.errors.InsufficientPrivilege), closing(psycopg.connect(dsn)) as connection:
        connection.execute("delete from tallystick_barrier")
    with running_broker(databases={"shop": dsn}) as broker, Client(broker.url, group="shop") as ts:
        ts.prepare("claims-1", [outgoing("orders", "x")], check=CheckBack(database="shop", after=0))
        assert eventually(lambda: ts.outcome("claims-1")) == "rolled_back"


def test_an_alert_has_the_documented_form(tmp_path: Path) -> None:
    with (
        _receiver() as (url, received),
        running_broker(tmp_path, alert_url=url, max_checks=1) as broker,
        Client(broker.url, group="shop") as ts,
    ):
        nobody = CheckBack(url="http://127.0.0.1:9/", after=0)
        ts.prepare("claims-2", [outgoing("orders", "x")], check=nobody)
        eventually(lambda: received)
    assert [(one["event"], one["subject"]) for one in received] == [("parked", "claims-2")]
    assert set(received[0]) == {"event", "subject", "detail", "gid"}


def test_every_event_that_is_posted_is_told() -> None:
    page = (ROOT / "docs/how-to/check-back.md").read_text().partition("## Be told")[2]
    assert set(re.findall(r"^\| `(\w+)` \| (?=\w)", page, re.MULTILINE)) - {"event"} == set(ALERTING)


def test_the_page_on_watching_names_metrics_that_exist() -> None:
    known = set(re.findall(r"`(tallystick_\w+)`", (ROOT / "docs/reference/metrics.md").read_text()))
    named = set(re.findall(r"\btallystick_\w+", (ROOT / "docs/how-to/watch-a-broker.md").read_text()))
    assert {name.removesuffix("_bucket") for name in named} <= known


@contextmanager
def _receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that keeps the JSON it is sent."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/alerts", received
        finally:
            server.shutdown()
            thread.join()
