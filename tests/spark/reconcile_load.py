"""A system under way: producers in all modes and consumers of both kinds, on threads."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

from reconcile_ground import EFFECTS, Broker, Service

import tallystick


class Load:
    """Producers in all modes and consumers of both kinds, on threads, until told to stop."""

    def __init__(self, url: str, directory: Path) -> None:
        self.shop, self.inbox, self.offset = (Service(directory / f"{name}.db") for name in ("shop", "inbox", "offset"))
        for service in (self.shop, self.inbox, self.offset):
            service.execute("pragma journal_mode = wal")
        self.client = tallystick.Client(url, group="busy", database=self.shop.open)
        self._stop, self._threads = threading.Event(), []
        for number in range(2):
            self._threads.append(threading.Thread(target=self._produce, args=(number,), name=f"load-{number}"))
        self._subscribe(self.inbox, "by-inbox", "inbox")
        self._subscribe(self.offset, "by-offset", "offset")
        self.done = 0

    def _subscribe(self, service: Service, group: str, by: Any) -> None:
        @self.client.subscribe("busy", group=group, exactly_once=service.open, by=by, concurrency=2)
        def apply(message: tallystick.Message, connection: Any) -> None:
            connection.execute(f"insert into {EFFECTS} values (?)", (message.id,))

    def _produce(self, number: int) -> None:
        modes: list[dict[str, Any]] = [{}, {"prepare": "early"}, {"mode": "outbox"}, {"mode": "consumer-dedup"}]
        chance = random.Random(number)
        while not self._stop.is_set():
            how = chance.choice(modes)
            with contextlib.suppress(ZeroDivisionError, tallystick.TallystickError, sqlite3.OperationalError):
                self._one(how, fails=chance.random() < 0.2)
            time.sleep(0.02)

    def _one(self, how: dict[str, Any], fails: bool) -> None:
        with contextlib.closing(self.shop.open()) as connection, self.client.transaction(connection, **how) as tx:
            tx.send("busy", "first")
            tx.send("busy", "second")
            if "prepare" in how:
                tx.prepare()
            if fails:
                raise ZeroDivisionError
        self.done += 1

    def __enter__(self) -> Load:
        self.client.start()
        for thread in self._threads:
            thread.start()
        return self

    def unsent(self) -> int:
        with contextlib.closing(self.shop.open()) as connection:
            return int(connection.execute("select count(*) from tallystick_outbox").fetchone()[0])

    def stop_producing(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop_producing()
        self.client.close()


def groups_of(broker: Broker) -> set[str]:
    return {view["group"] for view in broker.ask("GET", "/v1/groups").json()["groups"]}


def settled(broker: Broker) -> bool:
    views = broker.ask("GET", "/v1/groups").json()["groups"]
    pending = broker.ask("GET", "/v1/transactions?state=prepared").json()["transactions"]
    return not pending and sum(view.get("lag", 0) for view in views) == 0
