"""SQLAlchemy 2: Core connections and ORM sessions, sync and async.

The async classes of SQLAlchemy run sync code in a greenlet, so the async adapter is the sync one, run there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, SingletonThreadPool, StaticPool
from sqlalchemy.util import await_only

from tallystick.barrier.adapters.asking_state import ConnectorState, MysqlclientState
from tallystick.barrier.adapters.inherited_connections import refuse_inherited
from tallystick.barrier.adapters.last_look import just_before_commit
from tallystick.barrier.adapters.placeholders import numbered_style, percent_style, without_bytes
from tallystick.barrier.adapters.sqlite import run_statement
from tallystick.barrier.adapters.state import (
    AsyncpgState,
    DriverState,
    MysqlState,
    PostgresState,
    SqliteState,
    mysql_address,
    postgres_address,
    sqlite_address,
)
from tallystick.barrier.adapters.transaction_end import Ending, not_committed
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.dialects.engines import MYSQL, POSTGRESQL, PREPARED_POSTGRESQL, SQLITE
from tallystick.barrier.errors import BarrierError, TransactionOpen, UnsupportedConnection
from tallystick.barrier.statement import Result, Statement

T = TypeVar("T")

# Pools of which another one would not lead to the same database in memory.
_ONE_CONNECTION = (StaticPool, SingletonThreadPool)

# Only drivers that tell the state of their transaction, or can be asked for it, or tell what has become of a commit (as
# asyncpg). With another one a transaction that an error has aborted would "commit" without a word.
_DRIVERS: dict[str, tuple[Dialect, DriverState]] = {
    "pysqlite": (SQLITE, SqliteState()),
    "aiosqlite": (SQLITE, SqliteState()),
    "psycopg": (POSTGRESQL, PostgresState()),
    "psycopg2": (POSTGRESQL, PostgresState()),
    "asyncpg": (PREPARED_POSTGRESQL, AsyncpgState()),
    "pymysql": (MYSQL, MysqlState()),
    "aiomysql": (MYSQL, MysqlState()),
    "asyncmy": (MYSQL, MysqlState()),
    "mysqldb": (MYSQL, MysqlclientState()),
    "mysqlconnector": (MYSQL, ConnectorState()),
}


_DATABASES = Statement("pragma database_list")


class SqlAlchemyAdapter:
    """A `Connection` or a `Session`."""

    is_async: Literal[False] = False
    raw_at_once = False

    def __init__(self, owner: Connection | Session) -> None:
        self._owner = owner
        self._engine = _engine_of(owner)
        self.dialect, self._state = _supported(self._engine)
        self._is_sqlite = self.dialect is SQLITE
        self._is_psycopg = self._engine.dialect.driver == "psycopg"
        self._is_aiosqlite = self._engine.dialect.driver == "aiosqlite"
        self._is_asyncpg = self._engine.dialect.driver == "asyncpg"
        self._ending = Ending(self.dialect, self._state)
        self._begun: Connection | None = None
        self._path: str | None = None
        self._address = ""

    @property
    def in_transaction(self) -> bool:
        owner = self._owner
        waiting = isinstance(owner, Session) and bool(owner.new or owner.dirty or owner.deleted)
        return owner.in_transaction() or waiting

    @property
    def address(self) -> str:
        if self._is_sqlite:
            return sqlite_address(self._file())
        return self._address or self._address_of(self.raw)

    @property
    def raw(self) -> Any:
        return _driver(self._connection())

    def attach(self) -> None:
        if isinstance(self._owner, Session):
            _refuse_joined(self._owner)
        self._begun = self._connection()
        _driver(self._begun)  # here, where it may wait: a connection that was lost is made anew

    def begin(self, first: Statement | None = None) -> None:
        self.attach()
        connection = self._connection()
        raw = _driver(connection)
        if self.dialect is not MYSQL:
            _refuse_deaf_commit(raw)
        if self._is_asyncpg:
            _asyncpg().refuse_autocommit(connection)
        # The pool knows when it opened the connection.
        opened_at = getattr(connection.connection._connection_record, "starttime", None)
        refuse_inherited(None if self._is_sqlite else raw, opened_at)
        if not self._is_sqlite:
            # Now: a session that is ended inside the block would have to open another connection to tell.
            self._address = self._address_of(raw)
        if first is not None and self._is_psycopg:  # it brings its BEGIN along
            self.execute(first)
            return
        doubt = self._state.doubt(raw)
        if doubt:
            connection.exec_driver_sql(doubt)
        statement = self._state.begin(raw)
        if statement:
            connection.exec_driver_sql(statement)
        if self._is_sqlite and self._path is None:
            self._path = _sqlite_path(connection, on_thread=self._is_aiosqlite)
        self._ending.begun(explicitly=bool(statement))
        if first is not None:
            self.execute(first)

    def commit(self) -> None:
        try:
            self._commit()
        except Exception as failure:
            if not self.commit_failure_is_certain(failure):
                # As `with session.begin()` does: a session or connection that lost its commit can be used again only
                # after a rollback, and the block does not roll back after this.
                with suppress(Exception):
                    self.rollback()
            raise

    def _commit(self) -> None:
        if self._is_sqlite and self._owner.in_nested_transaction():
            # pysqlite sends no BEGIN before a savepoint: releasing the outermost one is the commit, before any hook.
            self._ending.before_commit(self.raw)
            self._owner.commit()
        else:
            connection = self._connection()
            self._ending.before_hooks(_driver(connection))
            with just_before_commit(connection, self._last_look):
                self._owner.commit()
        # A session that is joined to an outer transaction commits nothing. One with an engine of its own has given its
        # connection back to the pool, where it may be another thread's by now.
        begun = self._begun
        if begun is None or begun.closed:
            return
        if begun.in_transaction():
            raise not_committed(certain=True)
        self._ending.after_commit(_driver(begun))

    def rollback(self) -> None:
        self._owner.rollback()
        # After a failed commit SQLAlchemy drops its transaction without telling the driver.
        connection, self._begun = self._begun, None
        if connection is None or connection.closed or connection.invalidated:
            return
        if not self._state.open(_driver(connection)):
            return
        if self._is_asyncpg:
            _asyncpg().roll_back_driver(connection)
        else:
            connection.connection.rollback()

    def execute(self, statement: Statement) -> Result:
        self._ending.used = True
        connection = self._connection()
        if self._is_psycopg:
            return _on_psycopg(connection, statement)
        if self._is_aiosqlite:
            return _on_aiosqlite(connection, statement)
        if self._engine.dialect.driver == "aiomysql":
            statement = without_bytes(statement)
        # Not `text()`: it is made and compiled again for every use, at several times the price of the statement.
        result = connection.exec_driver_sql(*self._bound(statement))
        if not result.returns_rows:
            return Result((), result.rowcount)
        return Result([tuple(row) for row in result], result.rowcount)

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        return self._ending.failure_is_certain(error)

    def opener(self) -> Callable[[], Any] | None:
        return None if self.has_one_connection() else own_engine(self._engine).connect

    def has_one_connection(self) -> bool:
        """Whether a second connection would be the first one again, or another database in memory."""
        if isinstance(self._engine.pool, _ONE_CONNECTION):
            return True
        return self._is_sqlite and not self._file()

    def close(self) -> None:
        self._owner.close()

    def _address_of(self, raw: Any) -> str:
        return postgres_address(raw) if self.dialect.name == "postgresql" else mysql_address(raw)

    def _last_look(self, used: Connection) -> None:
        self._ending.before_commit(_driver(used))
        if self._is_asyncpg:
            _asyncpg().have_commit_told(used)

    def _bound(self, statement: Statement) -> tuple[str, Any]:
        """As the driver wants it."""
        if self._is_asyncpg:
            numbered = numbered_style(statement.sql)
            return numbered.sql, tuple(statement.params[name] for name in numbered.names) or None
        return statement.sql if self._is_sqlite else percent_style(statement.sql), dict(statement.params) or None

    def _connection(self) -> Connection:
        owner = self._owner
        if not isinstance(owner, Session):
            return owner
        # A session looks for its connection at some length; as long as it has not let go of it, it is the same.
        known = self._begun
        return owner.connection() if known is None or known.closed or not owner.in_transaction() else known

    def _file(self) -> str:
        if self._path is None:
            raise BarrierError("begin() must have run before the name of the database is known")
        return self._path


class AsyncSqlAlchemyAdapter:
    """An `AsyncConnection` or an `AsyncSession`."""

    is_async: Literal[True] = True
    raw_at_once = False

    def __init__(self, owner: AsyncConnection | AsyncSession) -> None:
        self._owner = owner
        self._sync = SqlAlchemyAdapter(_sync_side(owner))
        self.dialect = self._sync.dialect

    @property
    def in_transaction(self) -> bool:
        return self._sync.in_transaction

    @property
    def address(self) -> str:
        return self._sync.address

    @property
    def raw(self) -> Any:
        return self._sync.raw

    async def attach(self) -> None:
        await self._run(self._sync.attach)

    async def begin(self, first: Statement | None = None) -> None:
        await self._run(lambda: self._sync.begin(first))

    async def commit(self) -> None:
        await self._run(self._sync.commit)

    async def rollback(self) -> None:
        await self._run(self._sync.rollback)

    async def execute(self, statement: Statement) -> Result:
        return await self._run(lambda: self._sync.execute(statement))

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        return self._sync.commit_failure_is_certain(error)

    def opener(self) -> Callable[[], Awaitable[Any]] | None:
        if self._sync.has_one_connection():
            return None
        engine = AsyncEngine(own_engine(self._sync._engine))
        return lambda: engine.connect().start()

    async def close(self) -> None:
        await self._owner.close()

    async def _run(self, action: Callable[[], T]) -> T:
        return await self._owner.run_sync(lambda _: action())


def _engine_of(owner: Connection | Session) -> Engine:
    bind = owner.get_bind() if isinstance(owner, Session) else owner
    return bind.engine


def _supported(engine: Engine) -> tuple[Dialect, DriverState]:
    driver = engine.dialect.driver
    if driver not in _DRIVERS:
        raise UnsupportedConnection(
            f"SQLAlchemy's driver {engine.dialect.name}+{driver} is not supported; use one of "
            "sqlite, sqlite+aiosqlite, postgresql+psycopg (sync and async), postgresql+psycopg2, postgresql+asyncpg, "
            "mysql+pymysql, mysql+mysqldb, mysql+mysqlconnector, mysql+aiomysql, mysql+asyncmy (or mariadb+...)"
        )
    return _DRIVERS[driver]


def _sync_side(owner: AsyncConnection | AsyncSession) -> Connection | Session:
    if isinstance(owner, AsyncSession):
        return owner.sync_session
    if owner.sync_connection is None:
        raise UnsupportedConnection("the AsyncConnection is not started: use `async with engine.connect() as conn`")
    return owner.sync_connection


def own_engine(engine: Engine) -> Engine:
    """One that opens connections as `engine` does and keeps none: a pool of the service's own must not be drained by
    check-backs, and in a forked child its sockets are the parent's."""
    pool = engine.pool
    return Engine(NullPool(pool._creator, dialect=engine.dialect, _dispatch=pool.dispatch), engine.dialect, engine.url)


def own_opener(owner: Engine | AsyncEngine, open_connection: Callable[[], Any]) -> Callable[[], Any]:
    """For `open_connection`, a method of an engine."""
    engine = owner.sync_engine if isinstance(owner, AsyncEngine) else owner
    if getattr(open_connection, "__name__", "") != "connect" or isinstance(engine.pool, _ONE_CONNECTION):
        return open_connection
    if isinstance(owner, AsyncEngine):
        return AsyncEngine(own_engine(engine)).connect
    return own_engine(engine).connect


def _refuse_joined(session: Session) -> None:
    """A session on a connection that is in a transaction commits nothing, except in the mode that says so."""
    if session.in_transaction():
        return
    bind = session.get_bind()
    if not isinstance(bind, Connection) or not bind.in_transaction():
        return
    if session.join_transaction_mode != "control_fully":
        raise TransactionOpen(
            "the session is joined to a transaction of its connection, which session.commit() does not commit; give "
            "the block that connection, or a session of an engine, or join_transaction_mode='control_fully'"
        )


def _refuse_deaf_commit(raw: Any) -> None:
    """In these modes the driver ignores the commit() that SQLAlchemy would send, even after an explicit BEGIN."""
    connection = getattr(raw, "_conn", raw)  # aiosqlite keeps the true connection inside
    if getattr(connection, "autocommit", None) is not True:
        return
    if isinstance(connection, sqlite3.Connection):
        raise UnsupportedConnection(
            "sqlite3 connections with autocommit=True are not supported through SQLAlchemy; "
            "use isolation_level='AUTOCOMMIT' of SQLAlchemy instead"
        )
    if type(connection).__module__.startswith("psycopg2"):
        raise UnsupportedConnection(
            "psycopg2 does not commit a transaction that was begun in its autocommit mode; give the block a connection "
            "without isolation_level='AUTOCOMMIT', as in engine.connect().execution_options("
            "isolation_level='READ COMMITTED'), or use postgresql+psycopg"
        )


def _on_psycopg(connection: Connection, statement: Statement) -> Result:
    """On the driver's own connection, at a third of the price. SQLAlchemy adds its transaction and its errors to it."""
    import psycopg

    from tallystick.barrier.adapters.psycopg import run_statement, run_statement_async

    if not connection.in_transaction():
        connection.begin()
    raw = _driver(connection)
    try:
        if isinstance(raw, psycopg.AsyncConnection):
            return await_only(run_statement_async(raw, statement))
        return run_statement(raw, statement)
    except psycopg.Error as error:
        connection._handle_dbapi_exception(error, statement.sql, None, None, None)


def _on_aiosqlite(connection: Connection, statement: Statement) -> Result:
    """In one piece on the driver's thread, where the cursor is closed even if the task is cancelled meanwhile. A cursor
    that stays open keeps the write lock of a connection that SQLAlchemy has closed."""
    if not connection.in_transaction():
        connection.begin()
    raw = _driver(connection)
    try:
        result: Result = await_only(raw._execute(lambda: run_statement(raw._conn, statement)))
    except sqlite3.Error as error:
        connection._handle_dbapi_exception(error, statement.sql, None, None, None)
    return result


def _asyncpg() -> Any:
    """What SQLAlchemy over asyncpg needs besides; imported by those who have asyncpg."""
    return import_module("tallystick.barrier.adapters.sqlalchemy_asyncpg")


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _sqlite_path(connection: Connection, on_thread: bool) -> str:
    if on_thread:
        rows = _on_aiosqlite(connection, _DATABASES).rows
    else:
        rows = [tuple(row) for row in connection.exec_driver_sql(_DATABASES.sql)]
    return next((str(row[2] or "") for row in rows if row[1] == "main"), "")
