"""Producers that got stuck in every way there is, and the judge of what became of their transactions."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from brokers import BrokerProcess
from raw_client import RawClient
from servers import Server
from service_database import Service
from tallystick.barrier import AlreadyDecided, adapt_sync, run_sync
from tallystick.barrier.operations.identity import ensure_identity
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Check, Prepare
from tallystick.spark.jdbc import Database
from tallystick.spark.jobs.checkback import CheckbackSettings, ProducerDatabase
from tallystick.spark.jobs.checkback.decider import BulkDecider

ENGINES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
# For what takes long: one of them, and the others in `make test-full`.
SQLITE_FIRST = [
    "sqlite",
    pytest.param("postgres", marks=[pytest.mark.full, pytest.mark.postgresql]),
    pytest.param("mariadb", marks=[pytest.mark.full, pytest.mark.mariadb]),
]
GROUP = "shop"
_numbers = itertools.count()


@dataclass
class Producer:
    """A service with a database of its own, and transactions that the broker has not heard the end of."""

    service: Service
    client: RawClient
    group: str = GROUP
    committed: set[str] = field(default_factory=set)
    other: set[str] = field(default_factory=set)
    topic: str = field(default_factory=lambda: f"orders-{next(_numbers)}")

    @property
    def source(self) -> str:
        with self.service.connection() as connection:
            adapter = adapt_sync(connection)
            return run_sync(adapter, ensure_identity()).source(adapter.address)

    def new_gids(self, count: int) -> list[str]:
        return [f"{self.topic}-{next(_numbers)}" for _ in range(count)]

    def prepare(self, gids: Iterable[str], **check: Any) -> None:
        how = Check(**{"source": self.source, "after_ms": 0, **check})
        self.client.batch(*(Prepare(gid, self.group, [OutgoingMessage(self.topic, gid.encode())], how) for gid in gids))

    def commit(self, count: int) -> list[str]:
        """Local transactions that committed, whose word never reached the broker."""
        gids = self.new_gids(count)
        self.prepare(gids)
        self.service.commit(*gids)
        self.committed.update(gids)
        return gids

    def roll_back(self, count: int) -> list[str]:
        gids = self.new_gids(count)
        self.prepare(gids)
        with self.service.local_transaction(*gids):
            pass
        self.other.update(gids)
        return gids

    def never_begin(self, count: int) -> list[str]:
        gids = self.new_gids(count)
        self.prepare(gids)
        self.other.update(gids)
        return gids

    def come_late(self, gids: Iterable[str]) -> None:
        """The local transactions wake up and try to commit after all; what comes of it is the truth."""
        for gid in gids:
            try:
                self.service.commit(gid)
            except AlreadyDecided:
                continue
            self.other.discard(gid)
            self.committed.add(gid)

    @property
    def gids(self) -> set[str]:
        return self.committed | self.other

    def states(self) -> dict[str, str]:
        views = {gid: self.client.transaction(gid) for gid in self.gids}
        return {gid: "gone" if view is None else view.state for gid, view in views.items()}

    def contradictions(self) -> set[str]:
        """The gids whose state or messages do not fit what their own database says. As sets, never as counts."""
        visible = [message.value.decode() for message in self.client.messages(self.topic)]
        wrong = {gid for gid in set(visible) if visible.count(gid) > 1}
        truth = {gid: "committed" if gid in self.committed else "rolled_back" for gid in self.gids}
        wrong |= {gid for gid, state in self.states().items() if state != truth[gid]}
        return wrong | (set(visible) ^ self.committed)

    # --- the job --------------------------------------------------------------------------------------------------

    def database(self, name: str = "") -> ProducerDatabase:
        return ProducerDatabase(Database.parse(self.service.url), name)


def settings(broker: BrokerProcess, *producers: Producer, **more: Any) -> CheckbackSettings:
    given: dict[str, Any] = {
        "url": broker.url,
        "databases": tuple(producer.database() for producer in producers),
        "groups": tuple({producer.group for producer in producers}),
        "older_than_ms": 0,
        "wait": 0.3,
        "retry": 20.0,
    }
    return CheckbackSettings(**{**given, **more})


def decider(
    broker: BrokerProcess, producer: Producer, kind: type[BulkDecider] = BulkDecider, **more: Any
) -> BulkDecider:
    given = {"table": "tallystick_barrier", "wait": 0.2, "batch": 7, "retry": 20.0, "dry_run": False}
    return kind(url=broker.url, database=Database.parse(producer.service.url), **{**given, **more})


def counted(task: BulkDecider, gids: Iterable[str]) -> dict[str, int]:
    """What a task says of its share."""
    return dict(task.run(sorted(gids)))


@contextlib.contextmanager
def running_locally(producer: Producer, count: int) -> Iterator[Any]:
    """Local transactions that are open while the block runs; it gets the connection, to commit them or not."""
    gids = producer.new_gids(count)
    producer.prepare(gids)
    producer.other.update(gids)
    with producer.service.local_transaction(*gids) as connection:
        yield connection, gids


def place_of(request: pytest.FixtureRequest, name: str, directory: Path) -> Path | Server:
    return directory / f"service-{next(_numbers)}.db" if name == "sqlite" else request.getfixturevalue(name)
