"""What the tests of the borders share: a service whose every row has a message, and the question whether they agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from client_support import Bank, messages_in

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from raw_client import RawClient

Mode = dict[str, Any]

MODES: dict[str, Mode] = {"late": {}, "early": {"prepare": "early"}, "outbox": {"mode": "outbox"}}

POSTGRES, MARIADB = "postgres_service", "mariadb_service"
"""Fixtures, for tests that are about one engine each."""

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}

COMMIT = b"\xa6commit"
"""How a commit looks in a request to the broker: its name as msgpack."""

INSERT = "insert into ledger (note) values (:note)"


class Service:
    """A producer: a note in its ledger and a message with the same text, both or neither."""

    def __init__(self, broker: BrokerProcess, bank: Bank, topic: str, group: str, **options: Any) -> None:
        self.broker, self.bank, self.topic, self.group = broker, bank, topic, group
        self.ts = tallystick.Client(broker.url, group=group, wait=True, **{"database": bank.open, **options})

    def close(self) -> None:
        self.ts.close()

    def block(
        self, connection: Any, note: str, do: Callable[[Any], object] = lambda _: None, mode: Mode | None = None
    ) -> None:
        """One block on a driver's connection: the note, its message, and whatever else `do` does to the connection."""
        early = bool(mode) and "prepare" in mode
        with self.ts.transaction(connection, **(mode or {})) as tx:
            if early:
                tx.send(self.topic, note)
                tx.prepare()
            self.bank.note(connection, note)
            if not early:
                tx.send(self.topic, note)
            do(connection)

    def settled(self) -> bool:
        """Whether nothing of this service waits for its outcome, in the broker or in an outbox."""
        with RawClient(self.broker.url) as raw:
            path = f"/v1/transactions?state=prepared&group={self.group}&limit=1"
            waiting = raw.request("GET", path).json()["transactions"]
        return not waiting and not self.bank.rows("select gid from tallystick_outbox")

    def messages(self) -> list[str]:
        return sorted(message.text for message in messages_in(self.broker.url, self.topic))

    def agrees_on(self, *notes: str) -> None:
        """Once everything has its outcome, these are the rows and these are the messages."""
        eventually(self.settled, "every transaction has its outcome, and the outbox is empty")
        assert (sorted(self.bank.notes()), self.messages()) == (sorted(notes), sorted(notes))


def run(sql: str) -> Callable[[Any], object]:
    """What a block does: one statement on the driver's connection."""
    return lambda connection: connection.cursor().execute(sql)


def run_and_ignore(sql: str, error: type[Exception]) -> Callable[[Any], None]:
    """The same, by code that swallows its error; it must have failed."""

    def do(connection: Any) -> None:
        try:
            connection.cursor().execute(sql)
        except error:
            return
        raise AssertionError(f"no {error.__name__}: {sql}")

    return do
