"""A bank's own database on each engine, with accounts 1 and 2 that hold 10,000 each; and commits that go wrong."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql.connections

from servers import Server
from tallystick.barrier import create_tables


class CommitRefused(Exception):
    """Not one of the driver's own errors, so nobody can tell from it what became of the commit."""


class SqliteBefore(sqlite3.Connection):
    def commit(self) -> None:
        self.rollback()
        raise CommitRefused


class SqliteAfter(sqlite3.Connection):
    def commit(self) -> None:
        super().commit()
        self.close()
        raise CommitRefused


class PsycopgBefore(psycopg.Connection[Any]):
    def commit(self) -> None:
        self.rollback()
        raise CommitRefused


class PsycopgAfter(psycopg.Connection[Any]):
    def commit(self) -> None:
        super().commit()
        self.close()
        raise CommitRefused


class PyMySQLBefore(pymysql.connections.Connection):  # type: ignore[type-arg]
    def commit(self) -> None:
        self.rollback()
        raise CommitRefused


class PyMySQLAfter(pymysql.connections.Connection):  # type: ignore[type-arg]
    def commit(self) -> None:
        super().commit()
        self.close()
        raise CommitRefused


FAILING = {
    ("sqlite", "before"): SqliteBefore,
    ("sqlite", "after"): SqliteAfter,
    ("postgresql", "before"): PsycopgBefore,
    ("postgresql", "after"): PsycopgAfter,
    ("mysql", "before"): PyMySQLBefore,
    ("mysql", "after"): PyMySQLAfter,
}


class Bank:
    """One database. `open` opens a connection as a service would."""

    def __init__(self, engine: str, place: Path | Server) -> None:
        self.engine = engine
        self._place = place
        self._database = place.new_database() if isinstance(place, Server) else ""
        with self.connection() as connection:
            create_tables(connection)
            cursor = connection.cursor()
            cursor.execute("create table account (id integer primary key, balance integer not null)")
            cursor.execute("insert into account values (1, 10000), (2, 10000)")
            connection.commit()

    def open(self) -> Any:
        if isinstance(self._place, Server):
            return self._place.connect(self._database)
        return sqlite3.connect(self._place, timeout=10)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        with contextlib.closing(self.open()) as connection:
            yield connection

    @contextlib.contextmanager
    def failing(self, when: str) -> Iterator[Any]:
        """A connection whose commit fails: `before` it took effect, or `after`, and then the connection is gone too."""
        kind: Any = FAILING[self.engine, when]
        if self.engine == "sqlite":
            made = sqlite3.connect(self._place, timeout=10, factory=kind)
        else:
            assert isinstance(self._place, Server)
            parameters = self._place.parameters(self._database)
            made = kind.connect(**parameters) if self.engine == "postgresql" else kind(**parameters)
        try:
            yield made
        finally:
            if getattr(made, "open", True):  # PyMySQL closes only once
                made.close()

    def url(self, driver: str) -> Any:
        if isinstance(self._place, Server):
            return self._place.url(driver, self._database)
        return f"{driver}:///{self._place}"

    def adjust(self, connection: Any, account: int, amount: int) -> None:
        mark = "?" if self.engine == "sqlite" else "%s"
        sql = f"update account set balance = balance + {mark} where id = {mark}"
        connection.cursor().execute(sql, (amount, account))

    def balances(self) -> tuple[int, int]:
        first, second = self.rows("select balance from account order by id")
        return first[0], second[0]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection() as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]
