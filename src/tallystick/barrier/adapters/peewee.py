"""Peewee: a `Database`, whose connection belongs to the thread that uses it.

Peewee keeps count of its transactions by itself. The block puts one on the stack of its database, so that `db.atomic()`
inside the block is a savepoint; everything else is done by the adapter of the driver's own connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import peewee

from tallystick.barrier.adapters.inherited_connections import refuse_inherited, refuse_inherited_file
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.dialects.engines import MYSQL, POSTGRESQL, SQLITE
from tallystick.barrier.errors import TransactionLost, TransactionOpen, UnsupportedConnection
from tallystick.barrier.statement import Result, Statement

if TYPE_CHECKING:
    from tallystick.barrier.adapters.base import SyncAdapter

_DIALECTS: dict[type, Dialect] = {
    peewee.SqliteDatabase: SQLITE,
    peewee.PostgresqlDatabase: POSTGRESQL,
    peewee.MySQLDatabase: MYSQL,
}


class PeeweeAdapter:
    """A `peewee.Database`, connected or not."""

    is_async: Literal[False] = False
    raw_at_once = False

    def __init__(self, database: Any) -> None:
        self._database = getattr(database, "obj", database)  # what a DatabaseProxy stands for
        self.dialect = _dialect_of(self._database)
        self._known: SyncAdapter | None = None
        self._ours: Any = None  # the transaction that was put on Peewee's stack
        self._thread = 0
        self._address = ""  # read where statements can be run; others may ask for it
        self._committed = False

    @property
    def in_transaction(self) -> bool:
        return self._database.in_transaction() or self._driver().in_transaction

    @property
    def address(self) -> str:
        return self._address or self._driver().address

    @property
    def raw(self) -> Any:
        return self._driver().raw

    def attach(self) -> None:
        self._driver()

    def begin(self, first: Statement | None = None) -> None:
        database, driver = self._database, self._driver()
        if database.in_transaction() and database.top_transaction() is not self._ours:
            raise TransactionOpen(
                "the database is inside a db.atomic() or db.transaction() of Peewee, which ends the transaction by "
                "itself, or inside another block; use Tallystick's block instead of it, or around it: inside the "
                "block db.atomic() is a savepoint"
            )
        (refuse_inherited_file if self.dialect.name == "sqlite" else refuse_inherited)(driver.raw)
        if not driver.in_transaction:
            # As Peewee would, which knows the isolation level; on SQLite at once as a writer.
            database.begin(*(["immediate"] if self.dialect.name == "sqlite" else []))
        driver.begin(first)
        self._address = driver.address
        if self._ours is None or database.top_transaction() is not self._ours:
            self._ours = database.transaction()
            database.push_transaction(self._ours)
            self._thread = threading.get_ident()
        self._committed = False

    def commit(self) -> None:
        if self._ours is not None and self._database.top_transaction() is not self._ours:
            raise TransactionLost(
                "a db.atomic() or db.transaction() that was begun in the block has not ended, or the block's own was "
                "ended by db.session_commit() or db.session_rollback()",
                rolled_back=False,
            )
        self._driver().commit()
        self._committed = True
        self._forget()
        run_hooks = getattr(self._database, "_run_commit_callbacks", None)  # of db.after_commit, from Peewee 4 on
        if run_hooks is not None:
            run_hooks()

    def rollback(self) -> None:
        if self._elsewhere() and self._known is not None:
            self._known.rollback()
            return
        self._forget()
        clear_hooks = getattr(self._database, "_clear_commit_callbacks", None)
        if clear_hooks is not None:
            clear_hooks()
        self._driver().rollback()

    def execute(self, statement: Statement) -> Result:
        return self._driver().execute(statement)

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        # What a hook of db.after_commit raises says nothing of the commit, which is behind it.
        return not self._committed and self._driver().commit_failure_is_certain(error)

    def opener(self) -> Callable[[], Any] | None:
        return self._driver().opener() or self._mysqlclient_opener()

    def close(self) -> None:
        self._database.close()

    def _driver(self) -> SyncAdapter:
        """That of the connection which this thread has now."""
        from tallystick.barrier.adapters.recognition import adapt_sync

        if self._elsewhere():
            raise UnsupportedConnection(
                "Peewee's connections belong to threads: end the block in the thread in which it was begun"
            )
        connection = self._database.connection()
        if self._known is None or self._known.raw is not getattr(connection, "_cnx", connection):
            self._known = adapt_sync(connection)
        return self._known

    def _elsewhere(self) -> bool:
        return self._ours is not None and self._thread != threading.get_ident()

    def _mysqlclient_opener(self) -> Callable[[], Any] | None:
        """mysqlclient does not tell its password, but Peewee does."""
        if self.dialect.name != "mysql":
            return None
        kind, name = type(self.raw), self._database.database
        parameters = dict(self._database.connect_params)
        return lambda: kind(database=name, autocommit=True, **parameters)

    def _forget(self) -> None:
        while self._ours is not None and self._database.in_transaction():
            if self._database.pop_transaction() is self._ours:
                break
        self._ours = None


def _dialect_of(database: Any) -> Dialect:
    if any(base.__module__ == "playhouse.pwasyncio" for base in type(database).__mro__):
        raise UnsupportedConnection(
            "databases of playhouse.pwasyncio are not supported; use Peewee without asyncio, or an async driver itself "
            "(aiosqlite, asyncpg, psycopg, aiomysql, asyncmy), or SQLAlchemy"
        )
    for kind, dialect in _DIALECTS.items():
        if isinstance(database, kind):
            return dialect
    raise UnsupportedConnection(
        f"{type(database).__qualname__} is not a database of Peewee that is supported; those of SQLite, PostgreSQL, "
        "MySQL and MariaDB are. (A DatabaseProxy must be initialized first)"
    )
