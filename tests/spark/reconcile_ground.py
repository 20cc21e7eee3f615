"""Producers and consumers with databases of their own, and a broker, for the tests of the reconciliation.

Everything is done by real operations: transactions by the client library, deliveries by receive and acknowledge, with
the inbox row and the effect in one local transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tallystick
from brokers import BrokerProcess
from raw_client import Answer, RawClient
from servers import Server
from tallystick.barrier import Operation, adapt_sync, create_tables, first_time, run_sync
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Check, ClientOp, Nack, Prepare
from tallystick.core.wire import Delivery

EFFECTS = "effect"
FAR_AWAY = Check(after_ms=3_600_000)  # nobody checks while a test runs


class Service:
    """A service's own database: our tables, and one for its effects that lets anything in."""

    def __init__(self, place: Path | Server) -> None:
        self._place = place
        self._name = place.new_database() if isinstance(place, Server) else ""
        with contextlib.closing(self.open()) as connection:
            create_tables(connection)
            connection.cursor().execute(f"create table {EFFECTS} (message_id varchar(255))")
            connection.commit()

    def open(self) -> Any:
        if isinstance(self._place, Server):
            return self._place.connect(self._name)
        return sqlite3.connect(self._place, timeout=30)

    @property
    def url(self) -> str:
        place = self._place
        if not isinstance(place, Server):
            return f"sqlite:///{place}"
        account = f"{place.user}:{quote(place.password, safe='')}"
        return f"{place.engine}://{account}@{place.host}:{place.port}/{self._name}"

    def run(self, *operations: Operation[Any], then: Callable[[Any], None] | None = None) -> list[Any]:
        """Operations of one local transaction, with `then` as the business in it."""
        with contextlib.closing(self.open()) as connection:
            adapter = adapt_sync(connection)
            adapter.begin()
            done = [run_sync(adapter, operation) for operation in operations]
            if then is not None:
                then(connection.cursor())
            adapter.commit()
            return done

    def execute(self, sql: str) -> int:
        with contextlib.closing(self.open()) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            connection.commit()
            return int(cursor.rowcount)


class Broker:
    """A broker by way of the raw API, and what a consumer does with it."""

    def __init__(self, process: BrokerProcess) -> None:
        self.url = process.url
        self.store: str = self.info()["store"]

    def ask(self, method: str, path: str, content: Any = None) -> Answer:
        with RawClient(self.url) as raw:
            return raw.json(method, path, content)

    def info(self) -> dict[str, Any]:
        return dict(self.ask("GET", "/v1/info").json())

    def do(self, op: ClientOp) -> None:
        with RawClient(self.url) as raw:
            raw.do(op)

    def prepare(self, gid: str, topic: str, group: str = "shop", messages: int = 1) -> str:
        content = [OutgoingMessage(topic, f"{gid} {number}".encode()) for number in range(messages)]
        self.do(Prepare(gid, group, content, FAR_AWAY))
        return gid

    def deliveries(self, group: str, topic: str) -> Iterator[Delivery]:
        with RawClient(self.url) as raw:
            while found := raw.receive(group, topic, max=100):
                yield from found

    def consume(self, group: str, topic: str, service: Service, bury: frozenset[str] = frozenset()) -> list[str]:
        """Apply whatever there is for a group, and bury what is named; the ids that were applied."""
        applied = []
        for delivery in self.deliveries(group, topic):
            identity = delivery.message.id(self.store)
            if identity in bury:
                self.do(Nack(group, [delivery.receipt], dead=True, reason="planted"))
                continue
            effect = f"insert into {EFFECTS} values ('{identity}')"
            service.run(first_time(group, identity), then=lambda cursor, effect=effect: cursor.execute(effect))
            self.do(Ack(group, [delivery.receipt]))
            applied.append(identity)
        return applied


def transact(client: tallystick.Client, service: Service, *topics: str, **how: Any) -> str:
    """One transaction with a message for each topic; its gid."""
    with contextlib.closing(service.open()) as connection:
        with client.transaction(connection, **how) as tx:
            for topic in topics:
                tx.send(topic, {"for": topic})
            gid = tx.gid
        return str(gid)
