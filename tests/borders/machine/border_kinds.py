"""Kinds of connections: how each is opened, used and looked at. Every kind has two places, with a barrier in each.

A place is a file of SQLite, a schema of one PostgreSQL database, or a schema of one MariaDB server.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psycopg2
from border_drivers import CutPsycopg, CutPsycopg2, CutPyMySQL, CutSqlite
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.orm import Session

from servers import Server
from tallystick.barrier import create_tables

PLACES = (0, 1)
TAKEN = "taken"
LOCK_WAIT_MS = 300

_TABLES = (
    "create table ledger (note varchar(100) not null primary key)",
    "create table scratch (note varchar(100))",
    "create table locks (id integer not null primary key, times integer not null)",
    f"insert into ledger values ('{TAKEN}')",
    "insert into locks values (1, 0), (2, 0)",
)


@dataclass
class Seat:
    """A connection in the user's hands. `autocommit`: outside a transaction each statement commits by itself."""

    conn: Any
    place: int
    autocommit: bool = False
    outer: Any = None  # what a session is joined to, and nobody commits
    used_up: bool = False  # not for another block


class Kind(ABC):
    """One way to use a database. `own_steps` are what only this kind can do, by their names in `border_steps`."""

    name: ClassVar[str]
    mark = "%s"
    slots = 3
    one_writer = False
    create_commits = False
    """Whether `create table` ends the transaction, as `begin` then does."""
    variants: tuple[str, ...]
    handler_variants: tuple[str, ...]
    own_steps: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._looking: dict[int, Any] = {}
        self.make_tables()

    @abstractmethod
    def open(self, place: int, variant: str) -> Seat:
        """A connection that finds its tables in `place`."""

    @abstractmethod
    def plain(self, place: int) -> Any:
        """A connection of the driver for the tests themselves, in autocommit mode."""

    def place_of(self, slot: int, wanted: int) -> int:
        return wanted

    def go_to(self, place: int) -> str:
        """The statement after which a connection finds its tables in `place`."""
        raise NotImplementedError

    def raw(self, seat: Seat) -> Any:
        """The driver's connection, which can be told to cut its next commit."""
        return seat.conn

    def alive(self, seat: Seat) -> bool:
        return not seat.conn.closed

    def arm(self, seat: Seat, fault: str | None) -> None:
        """Have the next commit cut off."""
        with contextlib.suppress(Exception):  # a connection that is gone, or of a driver that must be refused anyway
            self.raw(seat).fault = fault

    def disarm(self, seat: Seat) -> None:
        """What was to be cut off has failed before it came to its commit."""
        self.arm(seat, None)

    def run(self, conn: Any, sql: str, values: Sequence[Any] = ()) -> None:
        cursor = conn.cursor()
        try:
            cursor.execute(sql, values) if values else cursor.execute(sql)
        finally:
            cursor.close()

    def insert(self, conn: Any, row: str) -> None:
        self.run(conn, f"insert into ledger (note) values ({self.mark})", (row,))

    def close(self, seat: Seat) -> None:
        with contextlib.suppress(Exception):
            seat.conn.close()

    # What the tests look at

    def make_tables(self) -> None:
        for place in PLACES:
            with contextlib.closing(self.plain(place)) as conn:
                create_tables(conn)
                for statement in _TABLES:
                    self.run(conn, statement)

    def select(self, place: int, sql: str) -> list[tuple[Any, ...]]:
        """On a connection that is kept for this."""
        if place not in self._looking:
            self._looking[place] = self.plain(place)
        cursor = self._looking[place].cursor()
        cursor.execute(sql)
        return [tuple(row) for row in cursor.fetchall()]

    def dispose(self) -> None:
        for conn in self._looking.values():
            conn.close()


class SqliteKind(Kind):
    """sqlite3 has one writer: each slot has a file of its own, or blocks would only wait for each other."""

    name = "sqlite"
    mark = "?"
    slots = 2
    one_writer = True
    variants = handler_variants = ("implicit", "autocommit")
    own_steps = ("script", "with conn")

    def __init__(self, directory: Path) -> None:
        self._files = [directory / f"place-{place}.db" for place in PLACES]
        super().__init__()

    def place_of(self, slot: int, wanted: int) -> int:
        return slot

    def open(self, place: int, variant: str) -> Seat:
        autocommit = variant == "autocommit"
        return Seat(self._connect(place, None if autocommit else "DEFERRED"), place, autocommit)

    def plain(self, place: int) -> Any:
        return self._connect(place, None)

    def _connect(self, place: int, isolation: Any) -> CutSqlite:
        # Handlers' connections are closed from the thread that stops them.
        path = self._files[place]
        return CutSqlite(path, timeout=10, isolation_level=isolation, check_same_thread=False)

    def alive(self, seat: Seat) -> bool:
        return not seat.conn.shut


class PostgresKind(Kind):
    """psycopg. The schema is chosen by an option of the connection, or by a statement afterwards."""

    name = "psycopg"
    variants = handler_variants = ("implicit", "autocommit", "set afterwards")
    own_steps = ("conn.transaction", "conn.transaction fails", "with conn", "commit and chain", "other schema")

    def __init__(self, server: Server) -> None:
        self.server = server
        self.database = server.new_database()
        for place in PLACES:
            server.execute(f"create schema place_{place}", self.database)
        super().__init__()

    def open(self, place: int, variant: str) -> Seat:
        autocommit = variant == "autocommit"
        if variant != "set afterwards":
            return Seat(self.connect(place, autocommit=autocommit), place, autocommit)
        conn = self.connect(1 - place)
        self.run(conn, self.go_to(place))
        conn.commit()
        return Seat(conn, place)

    def go_to(self, place: int) -> str:
        return f"set search_path = place_{place}"

    def connect(self, place: int, **options: Any) -> CutPsycopg:
        start = f"-c search_path=place_{place} -c lock_timeout={LOCK_WAIT_MS}"
        return CutPsycopg.connect(**self.server.parameters(self.database), options=start, **options)

    def plain(self, place: int) -> Any:
        return self.connect(place, autocommit=True)


class Psycopg2Kind(PostgresKind):
    """psycopg2, not in autocommit mode: there its commits are statements, which cannot be cut off here."""

    name = "psycopg2"
    variants = handler_variants = ("implicit", "set afterwards")
    own_steps = ("with conn", "other schema")
    # It does not notice that a statement has ended its transaction, and what follows commits by itself.
    left_out = ("sql commit", "sql rollback")

    def connect(self, place: int, **options: Any) -> Any:
        start = f"-c search_path=place_{place} -c lock_timeout={LOCK_WAIT_MS}"
        where = self.server.parameters(self.database)
        conn = psycopg2.connect(**where, options=start, connection_factory=CutPsycopg2)
        conn.autocommit = options.get("autocommit", False)
        return conn


class MariaKind(Kind):
    """PyMySQL. The schema is chosen when the connection is opened, or by `use` afterwards."""

    name = "pymysql"
    create_commits = True
    variants = handler_variants = ("implicit", "autocommit", "use afterwards")
    own_steps = ("deadlock", "deadlock", "with conn", "commit and chain", "other schema")

    def __init__(self, server: Server) -> None:
        self._server = server
        self._schemas = [server.new_database() for _ in PLACES]
        super().__init__()

    def open(self, place: int, variant: str) -> Seat:
        autocommit = variant == "autocommit"
        afterwards = variant == "use afterwards"
        conn = self._connect(1 - place if afterwards else place, autocommit=autocommit)
        if afterwards:
            self.run(conn, self.go_to(place))
        self.run(conn, "set session innodb_lock_wait_timeout = 1")
        return Seat(conn, place, autocommit)

    def go_to(self, place: int) -> str:
        return f"use {self._schemas[place]}"

    def _connect(self, place: int, **options: Any) -> CutPyMySQL:
        return CutPyMySQL(**self._server.parameters(self._schemas[place]), **options)

    def plain(self, place: int) -> Any:
        return self._connect(place, autocommit=True)

    def alive(self, seat: Seat) -> bool:
        return bool(seat.conn.open)


class SessionKind(Kind):
    """SQLAlchemy over PostgreSQL: sessions and connections of an engine, and some that must be refused."""

    name = "session"
    variants = ("session", "connection", "joined", "control_fully", "psycopg2 autocommit")
    handler_variants = ("session", "connection")
    own_steps = ("begin_nested", "begin_nested fails", "pending", "pending duplicate", "session.close")

    def __init__(self, server: Server) -> None:
        self._postgres = PostgresKind(server)
        self._engines = [self._engine(place) for place in PLACES]
        url = server.url("postgresql+psycopg2", self._postgres.database)
        options = {"connect_args": {"options": "-c search_path=place_0"}, "isolation_level": "AUTOCOMMIT"}
        self._deaf = create_engine(url, **options)
        self._looking = {}

    def _engine(self, place: int) -> Any:
        return create_engine("postgresql+psycopg://", creator=lambda: self._postgres.connect(place))

    def dispose(self) -> None:
        super().dispose()
        for engine in (*self._engines, self._deaf):
            engine.dispose()

    def open(self, place: int, variant: str) -> Seat:
        engine = self._engines[place]
        if variant == "connection":
            return Seat(engine.connect(), place)
        if variant == "psycopg2 autocommit":
            return Seat(Session(self._deaf), 0, autocommit=True)
        if variant == "session":
            return Seat(Session(engine), place)
        outer = engine.connect()
        outer.begin()
        mode = "control_fully" if variant == "control_fully" else "conditional_savepoint"
        return Seat(Session(outer, join_transaction_mode=mode), place, outer=outer)

    def raw(self, seat: Seat) -> Any:
        owner = seat.conn
        connection = owner if isinstance(owner, Connection) else owner.connection()
        return connection.connection.driver_connection

    def alive(self, seat: Seat) -> bool:
        # A session that is joined to something ends with it, as a request does.
        return seat.outer is None and not getattr(seat.conn, "closed", False)

    def run(self, conn: Any, sql: str, values: Sequence[Any] = ()) -> None:
        if not isinstance(conn, Session | Connection):
            return super().run(conn, sql, values)
        bound = {f"value_{number}": value for number, value in enumerate(values)}
        conn.execute(text(sql % tuple(f":{name}" for name in bound)), bound)
        return None

    def close(self, seat: Seat) -> None:
        for one in (seat.conn, seat.outer):
            if one is not None:
                with contextlib.suppress(Exception):
                    one.close()

    def plain(self, place: int) -> Any:
        return self._postgres.plain(place)
