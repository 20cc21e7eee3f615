"""Every driver over every database, behind one face, so that each test is written once.

A party is one connection of one kind. Its calls are coroutines; a sync driver's run on a thread of their own, so
that two parties can wait for each other whatever they are made of.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import aiomysql
import aiosqlite
import asyncmy
import asyncpg
import mysql.connector
import MySQLdb
import psycopg
import psycopg2
import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from servers import Server
from tallystick.barrier import Adapter, Operation, adapt, create_tables, run_async, run_sync
from tallystick.barrier.operations.identity import whereabouts
from tallystick.barrier.statement import Result, Statement

T = TypeVar("T")

DRIVER_ERRORS = (
    sqlite3.Error,
    psycopg.Error,
    psycopg2.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    pymysql.Error,
    *(MySQLdb.Error, mysql.connector.Error, asyncmy.errors.Error),
)

# name -> engine; a name says driver and database
KINDS = {
    "sqlite3": "sqlite",
    "sqlite3-autocommit": "sqlite",
    "core-sqlite": "sqlite",
    "orm-sqlite": "sqlite",
    "async-core-sqlite": "sqlite",
    "async-orm-sqlite": "sqlite",
    "async-aiosqlite": "sqlite",
    "psycopg": "postgresql",
    "psycopg-autocommit": "postgresql",
    "async-psycopg": "postgresql",
    "async-psycopg-autocommit": "postgresql",
    "core-postgresql": "postgresql",
    "core-postgresql-autocommit": "postgresql",
    "orm-postgresql": "postgresql",
    "async-core-postgresql": "postgresql",
    "async-orm-postgresql": "postgresql",
    "psycopg2": "postgresql",
    "psycopg2-autocommit": "postgresql",
    "core-psycopg2": "postgresql",
    "async-asyncpg": "postgresql",
    "async-asyncpg-pool": "postgresql",
    "async-core-asyncpg": "postgresql",
    "async-orm-asyncpg": "postgresql",
    "pymysql": "mysql",
    "pymysql-autocommit": "mysql",
    "core-mysql": "mysql",
    "core-mariadb-autocommit": "mysql",
    "orm-mysql": "mysql",
    "mysqlclient": "mysql",
    "mysqlclient-autocommit": "mysql",
    "mysql-connector-autocommit": "mysql",
    "async-aiomysql": "mysql",
    "async-asyncmy-autocommit": "mysql",
    "core-mysqldb-autocommit": "mysql",
    "orm-mysqlconnector": "mysql",
    "async-core-aiomysql": "mysql",
    "async-orm-asyncmy": "mysql",
}
PLAIN_KINDS = ["sqlite3", "psycopg", "pymysql"]

# Where a statement outside a transaction commits by itself, whatever the connection was told.
ALWAYS_AUTOCOMMIT = ("async-asyncpg", "async-asyncpg-pool")

_MARKS = {"sqlite": [], "postgresql": [pytest.mark.postgresql], "mysql": [pytest.mark.mariadb]}


# Of the tests that are for every kind, `make test` runs these: a driver of each engine, and sessions of SQLAlchemy.
COMMON_KINDS = [*PLAIN_KINDS, "orm-mysql", "async-orm-postgresql"]


# Left to the full tests wherever they come.
_FULL_DRIVERS = ("psycopg2", "asyncpg", "mysqlclient", "connector", "aiomysql", "asyncmy", "mysqldb")
FULL_KINDS = [kind for kind in KINDS if any(driver in kind for driver in _FULL_DRIVERS)]


def kind_params(kinds: list[str], *, full: bool = False) -> list[Any]:
    return [_param(kind, full=full or kind in FULL_KINDS) for kind in kinds]


def every_kind() -> list[Any]:
    """Each kind there is; the less common ones are left to the full tests."""
    return [*kind_params(COMMON_KINDS), *kind_params([kind for kind in KINDS if kind not in COMMON_KINDS], full=True)]


def _param(kind: str, *, full: bool) -> Any:
    return pytest.param(kind, marks=[*_MARKS[KINDS[kind]], *([pytest.mark.full] if full else [])])


# For tests where the driver makes no difference: one kind for each engine.
plain_kinds = pytest.mark.parametrize("kind", kind_params(PLAIN_KINDS))


class Party:
    """A connection and the thread it lives on."""

    def __init__(self) -> None:
        self.connection: Any
        self.adapter: Adapter
        self.dispose: Callable[[], Any] = lambda: None
        self._thread = ThreadPoolExecutor(1)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a sync function on the party's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def do(self, method: str, *args: Any) -> Any:
        """Call a method of the adapter, whichever kind it is."""
        function = getattr(self.adapter, method)
        return await function(*args) if self.adapter.is_async else await self.call(function, *args)

    async def run(self, operation: Operation[T]) -> T:
        if self.adapter.is_async:
            return await run_async(self.adapter, operation)
        return await self.call(run_sync, self.adapter, operation)

    async def begin(self) -> None:
        await self.do("begin")

    async def commit(self) -> None:
        await self.do("commit")

    async def rollback(self) -> None:
        await self.do("rollback")

    async def execute(self, sql: str, **params: Any) -> Result:
        result: Result = await self.do("execute", Statement(sql, params))
        return result

    async def source(self) -> str:
        """In a transaction: the name of the database, as a block has it."""
        here = await self.run(whereabouts())
        address = self.adapter.address if self.adapter.is_async else await self.call(lambda: self.adapter.address)
        return here.source(address)

    async def in_transaction(self) -> bool:
        return await self.call(lambda: self.adapter.in_transaction)

    async def open_another(self) -> Party | None:
        """A party over a connection that the adapter's opener made."""
        opener = self.adapter.opener() if self.adapter.is_async else await self.call(self.adapter.opener)
        if opener is None:
            return None
        party = Party()
        party.adapter = adapt(await opener() if self.adapter.is_async else await party.call(opener))
        return party

    async def close(self) -> None:
        await self.do("close")
        disposed = self.dispose()
        if disposed is not None:
            await disposed
        self._thread.shutdown()


class Place:
    """A database with Tallystick's tables and an account table, and a way to open parties of one kind to it."""

    def __init__(self, kind: str, file: Path, server: Server | None) -> None:
        self.kind = kind
        self.engine = KINDS[kind]
        self.file = file
        self.server = server
        self._parties: list[Party] = []

    async def open(self, kind: str | None = None) -> Party:
        party = Party()
        self._parties.append(party)
        kind = kind or self.kind
        if kind == "async-asyncpg-pool":
            party.connection = await self._asyncpg_pooled(party)
        elif kind.startswith("async-psycopg"):
            party.connection = await self._psycopg_async(kind)
        elif kind == "async-asyncpg":
            party.connection = await asyncpg.connect(**self._asyncpg_parameters())
        elif kind.startswith(("async-core-", "async-orm-")):
            party.connection = await self._sqlalchemy_async(kind, party)
        elif kind.startswith("async-"):
            party.connection = await self._plain_async(kind)
        else:
            party.connection = await party.call(self._connect, kind, party)
        party.adapter = adapt(party.connection)
        return party

    def plain(self) -> Any:
        """A plain driver connection in autocommit mode, for the test's own looks."""
        if self.server is None:
            return sqlite3.connect(self.file, isolation_level=None)
        return self.server.connect(autocommit=True)

    def query(self, sql: str) -> list[Any]:
        with contextlib.closing(self.plain()) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            rows = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            cursor.close()
            return rows

    async def close(self) -> None:
        for party in self._parties:
            await party.close()

    def forget(self, party: Party) -> None:
        """Leave out of `close` a party that is closed already."""
        self._parties.remove(party)

    async def close_quietly(self) -> None:
        """Close connections that are broken already, which some drivers complain about."""
        for party in self._parties:
            with contextlib.suppress(*DRIVER_ERRORS, DBAPIError):
                await party.close()

    def _connect(self, kind: str, party: Party) -> Any:
        autocommit = kind.endswith("-autocommit")
        if kind.startswith("sqlite3"):
            return sqlite3.connect(self.file, isolation_level=None if autocommit else "DEFERRED", timeout=5)
        if kind.startswith("psycopg2"):
            assert self.server is not None
            connection = psycopg2.connect(**self.server.parameters())
            connection.autocommit = autocommit
            return connection
        if kind.startswith(("psycopg", "pymysql")):
            assert self.server is not None
            return self.server.connect(autocommit=autocommit)
        if kind.startswith(("mysqlclient", "mysql-connector")):
            assert self.server is not None
            connect = MySQLdb.connect if kind.startswith("mysqlclient") else mysql.connector.connect
            return connect(**self.server.parameters(), autocommit=autocommit)
        options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        engine = create_engine(self._url(kind), poolclass=NullPool, **options)
        party.dispose = engine.dispose
        return Session(engine) if kind.startswith("orm-") else engine.connect()

    async def _asyncpg_pooled(self, party: Party) -> Any:
        """A connection of a pool of its own."""
        pool = await asyncpg.create_pool(**self._asyncpg_parameters(), min_size=1, max_size=1)
        party.dispose = pool.close
        return await pool.acquire()

    def _asyncpg_parameters(self) -> dict[str, Any]:
        assert self.server is not None
        return self.server.asyncpg_parameters()

    async def _psycopg_async(self, kind: str) -> Any:
        assert self.server is not None
        return await psycopg.AsyncConnection.connect(
            **self.server.parameters(), autocommit=kind.endswith("-autocommit")
        )

    async def _plain_async(self, kind: str) -> Any:
        if self.server is None:
            return await aiosqlite.connect(self.file, timeout=5)
        given = {**self.server.parameters(), "autocommit": kind.endswith("-autocommit")}
        if "aiomysql" in kind:
            return await aiomysql.connect(db=given.pop("database"), **given)
        return await asyncmy.connect(**given)

    async def _sqlalchemy_async(self, kind: str, party: Party) -> Any:
        engine = create_async_engine(self._url(kind.removeprefix("async-")), poolclass=NullPool)
        party.dispose = engine.dispose
        return AsyncSession(engine) if "-orm-" in kind else await engine.connect().start()

    def _url(self, kind: str) -> Any:
        if self.server is None:
            return f"sqlite+aiosqlite:///{self.file}" if self._is_async() else f"sqlite:///{self.file}"
        drivers = {
            "postgresql": "postgresql+psycopg",
            "psycopg2": "postgresql+psycopg2",
            "asyncpg": "postgresql+asyncpg",
            "mysql": "mysql+pymysql",
            "mariadb": "mariadb+pymysql",
        }
        named = kind.split("-")[1]
        return self.server.url(drivers.get(named, f"mysql+{named}"))

    def _is_async(self) -> bool:
        return self.kind.startswith("async-")


TABLES = [f"tallystick_{name}" for name in ("barrier", "inbox", "offset", "outbox", "prepared", "digest")]


def prepare_database(place: Place) -> None:
    """Empty tables: created on the first use of a database, emptied on every further one."""
    with contextlib.closing(place.plain()) as connection:
        create_tables(connection)
        cursor = connection.cursor()
        cursor.execute("create table if not exists account (id integer primary key, balance integer not null)")
        for table in (*TABLES, "account"):
            cursor.execute(f"delete from {table}" + (" where op <> 'identity'" if "barrier" in table else ""))
        cursor.close()
