"""A service's own database as the processes of a fault test see it: handed over as JSON, opened by each anew.

The tables have no unique keys, on purpose: nothing but the barrier and the inbox keeps a row from being doubled.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sqlite3
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pymysql

from tallystick.barrier import create_tables

_TABLES = (
    "create table business (id varchar(190) not null, gid varchar(128) not null)",
    "create table effect (id varchar(190) not null, doer varchar(190) not null)",
)
_LOCK_SECONDS = 30
_FURTHER = ("psycopg2", "MySQLdb", "mysql.connector")
# What an asynchronous driver calls a parameter, where it is not what the others call it.
_FURTHER_ASYNC: dict[str, dict[str, str]] = {
    "asyncpg": {"dbname": "database"},
    "aiomysql": {"database": "db"},
    "asyncmy": {},
    "aiosqlite": {"path": "database"},
}


class Place(NamedTuple):
    """Where a database is; `engine` is sqlite, postgresql or mysql, and `driver` the module of another driver than that
    of most tests."""

    engine: str
    parameters: dict[str, Any]
    driver: str = ""

    def connect(self) -> Any:
        """A connection as a service would open it, with the driver's own defaults."""
        if self.driver in _FURTHER:
            return import_module(self.driver).connect(**self.parameters)
        if self.engine == "sqlite":
            return sqlite3.connect(self.parameters["path"], timeout=self.parameters.get("timeout", _LOCK_SECONDS))
        if self.engine == "postgresql":
            return psycopg.connect(**self.parameters)
        return pymysql.connect(**self.parameters)

    def run(self, connection: Any, sql: str, *values: object) -> list[Any]:
        """One statement on a connection, `%s` for each value; the rows, if there are some."""
        cursor = connection.cursor()
        try:
            cursor.execute(sql.replace("%s", "?") if self.engine == "sqlite" else sql, values)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            cursor.close()

    async def connect_async(self) -> Any:
        """An asynchronous connection where the driver has them, else a plain one for use on the event loop."""
        if self.driver in _FURTHER_ASYNC:
            names = _FURTHER_ASYNC[self.driver]
            given = {names.get(name, name): value for name, value in self.parameters.items()}
            return await import_module(self.driver).connect(**given)
        if self.engine == "postgresql":
            return await psycopg.AsyncConnection.connect(**self.parameters)
        return self.connect()

    async def run_async(self, connection: Any, sql: str, *values: object) -> None:
        if self.driver == "asyncpg":
            numbers = itertools.count(1)
            await connection.execute(re.sub("%s", lambda _: f"${next(numbers)}", sql), *values)
        elif self.driver == "aiosqlite":
            await connection.execute(sql.replace("%s", "?"), values)
        elif self.driver in _FURTHER_ASYNC:
            async with connection.cursor() as cursor:
                await cursor.execute(sql, values)
        elif self.engine == "postgresql":
            await connection.execute(sql, values)
        else:
            self.run(connection, sql, *values)

    async def close_async(self, connection: Any) -> None:
        if self.engine == "postgresql" or self.driver == "aiosqlite":
            await connection.close()
        else:
            connection.close()

    def rows(self, sql: str, *values: object) -> list[Any]:
        """What a reader with a connection of its own sees now."""
        with contextlib.closing(self.connect()) as connection:
            return self.run(connection, sql, *values)

    def create(self) -> Place:
        """Make Tallystick's tables and the service's own."""
        with contextlib.closing(self.connect()) as connection:
            create_tables(connection)
            for table in _TABLES:
                self.run(connection, table)
            connection.commit()
        return self


def sqlite_place(path: Path, timeout: float = _LOCK_SECONDS) -> Place:
    return Place("sqlite", {"path": str(path), "timeout": timeout}).create()


def server_place(server: Any) -> Place:
    """A new database on a server of `servers.py`."""
    return Place(server.engine, server.parameters(server.new_database())).create()


@contextlib.contextmanager
def opened(place: Place) -> Iterator[Any]:
    with contextlib.closing(place.connect()) as connection:
        yield connection
