"""Peewee: a `Database`, whose connection belongs to the thread that uses it.

Peewee keeps count of its transactions by itself. The block puts one on the stack of its database, so that `db.atomic()`
inside the block is a savepoint; everything else is done by the adapter of the driver's own connection.
"""

from __future__ import annotations

import contextlib
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
        self._stack: list[Any] = []  # Peewee's, of the thread that began the block
        self._hooks: list[Any] = []  # of db.after_commit, in that thread
        self._thread = 0
        self._address = ""  # read where statements can be run; others may ask for it
        self._refused = False  # whether the last commit surely left nothing behind

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
            self._stack = database._state.transactions
            self._hooks = _hooks_of(database)
            self._thread = threading.get_ident()
            database.push_transaction(self._ours)

    def commit(self) -> None:
        self._refused = True  # nothing was sent yet
        driver = self._driver()
        nested = self._ours is not None and self._database.top_transaction() is not self._ours
        found = self._leave_stack()  # before the COMMIT, as in Peewee: if it fails, the thread can still go on
        try:
            if nested:
                raise TransactionLost(
                    "a db.atomic() or db.transaction() that was begun in the block has not ended, or the block's own "
                    "was ended by db.session_commit() or db.session_rollback()",
                    rolled_back=found,
                )
            driver.commit()
        except BaseException as failure:
            self._refused = driver.commit_failure_is_certain(failure)
            if not self._refused:
                # The block does not roll back after this. Peewee does: the next block must not join what is open.
                with contextlib.suppress(Exception):
                    self._roll_back(driver)
            raise
        self._refused = False  # only a hook can fail from here on
        if _hooks_of(self._database):
            self._database._run_commit_callbacks()

    def rollback(self) -> None:
        driver = self._known or self._driver()
        if self._elsewhere():
            # If this fails, the transaction may still be open: the stack keeps refusing the other thread's next block.
            driver.rollback()
            self._leave_stack()
            self._hooks.clear()
        else:
            self._leave_stack()
            self._roll_back(driver)

    def _roll_back(self, driver: SyncAdapter) -> None:
        _hooks_of(self._database).clear()
        try:
            driver.rollback()
        except BaseException:
            self._close_lost(driver)
            raise

    def _close_lost(self, driver: SyncAdapter) -> None:
        """Close Peewee's connection, so that Peewee opens another one for this thread.

        The driver's adapter may have closed the connection already; a later db.close() would raise because of that.
        """
        if self.dialect.name == "sqlite":
            return  # there is no server to lose, and closing a database in memory would delete it
        database = self._database
        with contextlib.suppress(Exception):
            if not database.is_closed() and _raw_of(database.connection()) is driver.raw:
                database.close()
            else:
                driver.close()

    def execute(self, statement: Statement) -> Result:
        return self._driver().execute(statement)

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        return self._refused

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
        if self._known is None or self._known.raw is not _raw_of(connection):
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

    def _leave_stack(self) -> bool:
        """Remove what the block began from Peewee's stack, in any thread; True if the block's own was there.

        Everything on the stack was begun in the block: inside another transaction the block is refused.
        """
        found = self._ours is None or self._ours in self._stack
        self._stack.clear()
        self._ours, self._stack = None, []
        return found


def _raw_of(connection: Any) -> Any:
    """The driver's own connection, without the wrapper that Peewee puts around some of them."""
    return getattr(connection, "_cnx", connection)


def _hooks_of(database: Any) -> list[Any]:
    """The functions given to db.after_commit in this thread; Peewee has them from version 4 on."""
    hooks: list[Any] = getattr(database._state, "commit_callbacks", [])
    return hooks


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
