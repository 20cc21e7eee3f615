"""What the client's tests share: a service's database on each engine, and what is in a topic."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import tallystick
from servers import Server
from tallystick.barrier import create_tables

T = TypeVar("T")


class Bank:
    """A service's own database, with the tables of Tallystick and one for its business."""

    def __init__(self, engine: str, place: Path | Server) -> None:
        self.engine = engine
        self._place = place
        self._database = place.new_database() if isinstance(place, Server) else ""
        self.mark = "?" if engine == "sqlite" else "%s"
        with self.connection() as connection:
            create_tables(connection)
            connection.cursor().execute("create table ledger (note varchar(100) not null)")
            connection.commit()

    @property
    def path(self) -> Path:
        assert isinstance(self._place, Path)
        return self._place

    def open(self) -> Any:
        if isinstance(self._place, Server):
            return self._place.connect(self._database)
        return sqlite3.connect(self._place, timeout=60)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        with contextlib.closing(self.open()) as connection:
            yield connection

    def url(self, driver: str) -> Any:
        if isinstance(self._place, Server):
            return self._place.url(driver, self._database)
        return f"{driver}:///{self._place}"

    def parameters(self) -> dict[str, Any]:
        assert isinstance(self._place, Server)
        return self._place.parameters(self._database)

    def asyncpg_parameters(self) -> dict[str, Any]:
        assert isinstance(self._place, Server)
        return self._place.asyncpg_parameters(self._database)

    def note(self, connection: Any, note: str) -> None:
        """The business of this service."""
        connection.cursor().execute(f"insert into ledger (note) values ({self.mark})", (note,))

    def notes(self) -> list[str]:
        return [row[0] for row in self.rows("select note from ledger order by note")]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection() as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]

    def run(self, sql: str) -> None:
        with self.connection() as connection:
            connection.cursor().execute(sql)
            connection.commit()


def messages_in(url: str, topic: str) -> list[tallystick.Message]:
    """Every visible message of a topic, queue by queue."""
    with tallystick.Client(url) as ts:
        try:
            queues = ts.topic(topic).queues
        except tallystick.errors.NotFound:
            return []
        return [message for queue in range(queues) for message in ts.fetch(topic, queue, 0).messages]


def values_in(url: str, topic: str) -> list[Any]:
    return sorted(json.loads(message.value) for message in messages_in(url, topic))


def pay(
    ts: tallystick.Client,
    bank: Bank,
    topic: str,
    value: Any,
    *,
    note: str = "paid",
    connection: Any = None,
    fail: Exception | None = None,
    wait: bool | None = True,
    **options: Any,
) -> str:
    """One block: a note in the ledger and a message, or the failure that is asked for; its gid.

    Unless told otherwise it waits for its message to be visible, because tests look for it next.
    """
    with contextlib.ExitStack() as stack:
        used = connection or stack.enter_context(bank.connection())
        with ts.transaction(used, wait=wait, **options) as tx:
            bank.note(used, note)
            tx.send(topic, value)
            if fail is not None:
                raise fail
        return tx.gid
