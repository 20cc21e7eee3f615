"""Django's connections: that of the ORM, begun and ended by `transaction.atomic`, and copies of it, which are our own.

Statements go through Django's cursors, so they are seen wherever those of the ORM are: in its debug log, in execute
wrappers, in `assertNumQueries`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any, ClassVar, Literal
from urllib.parse import quote

from django.db import connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from tallystick.barrier.adapters.base import Managed, SyncAdapter
from tallystick.barrier.adapters.inherited_connections import refuse_inherited, refuse_inherited_file
from tallystick.barrier.adapters.placeholders import positional_style
from tallystick.barrier.adapters.state import (
    DriverState,
    PostgresState,
    SqliteState,
    ended,
    mysql_server_address,
    postgres_address,
    sqlite_address,
)
from tallystick.barrier.adapters.transaction_end import Ending
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.dialects.engines import MYSQL, POSTGRESQL, SQLITE
from tallystick.barrier.errors import TransactionLost, UnsupportedConnection
from tallystick.barrier.statement import Result, Statement

_MYSQL_PORT = 3306


class _UntoldState:
    """mysqlclient tells nothing of its transaction; the tether does."""

    chains: ClassVar[bool] = False

    def open(self, raw: Any) -> bool:
        return False

    def doubt(self, raw: Any) -> str | None:
        return None

    def begin(self, raw: Any) -> str | None:
        return None

    def lost(self, raw: Any) -> TransactionLost | None:
        return None


_VENDORS: dict[str, tuple[Dialect, DriverState]] = {
    "sqlite": (SQLITE, SqliteState()),
    "postgresql": (POSTGRESQL, PostgresState()),
    "mysql": (MYSQL, _UntoldState()),
}


def supported(vendor: str) -> bool:
    """Whether databases of this kind (`connection.vendor`) are."""
    return vendor in _VENDORS


def django_adapter(connection: Any) -> SyncAdapter:
    """For `connections[alias]`, or for a copy of it."""
    try:
        is_the_orms = connections[connection.alias] is connection
    except ConnectionDoesNotExist:
        is_the_orms = False
    return OrmAdapter(connection) if is_the_orms else CopyAdapter(connection)


def proxy_adapter(proxy: Any) -> SyncAdapter:
    """For `django.db.connection`, which stands for the default one of the thread."""
    return django_adapter(proxy._connections[proxy._alias])


def own_copy(connection: Any) -> Callable[[], Any]:
    """What opens new connections with the same parameters: none of the thread's, and none of a pool."""
    kind, alias, settings = type(connection), connection.alias, deepcopy(connection.settings_dict)
    settings["OPTIONS"].pop("pool", None)
    settings.update(AUTOCOMMIT=True, ATOMIC_REQUESTS=False, CONN_MAX_AGE=0)
    return lambda: kind(deepcopy(settings), alias)


def opener_of(alias: str) -> Callable[[], Any]:
    """The same for an alias; its settings are read when it is used: a test runner changes the name of the database."""
    return lambda: own_copy(connections.create_connection(alias))()


class _DjangoAdapter:
    """What both have in common."""

    is_async: Literal[False] = False
    raw_at_once = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        if not supported(connection.vendor):
            raise UnsupportedConnection(
                f"Django's {connection.vendor} is not supported (database {connection.alias!r}); supported are "
                + ", ".join(_VENDORS)
            )
        self.dialect, self._state = _VENDORS[connection.vendor]
        self._ending = Ending(self.dialect, self._state)

    @property
    def address(self) -> str:
        self._refuse_closed()
        if self.dialect.name == "postgresql":
            return postgres_address(self.raw)
        if self.dialect.name == "mysql":
            given = self._connection.get_connection_params()
            host, port = given.get("host") or "localhost", given.get("port") or _MYSQL_PORT
            return mysql_server_address(given.get("unix_socket"), host, port)
        path = self._sqlite_file()
        return sqlite_address(path) if path else f"sqlite:{self._connection.settings_dict['NAME']}"

    @property
    def raw(self) -> Any:
        return self._connection.connection

    def attach(self) -> None:
        # Django looks whether a connection that was idle is still good; it is to do that before `raw` is looked at.
        if not self._connection.in_atomic_block:
            self._connection.close_if_health_check_failed()
        self._connection.ensure_connection()

    def execute(self, statement: Statement) -> Result:
        self._refuse_closed()
        self._ending.used = True
        with self._connection.cursor() as cursor:
            cursor.execute(*positional_style(statement.sql, statement.params, blob=self._blob))
            return Result(cursor.fetchall() if cursor.description else (), cursor.rowcount)

    def opener(self) -> Callable[[], Any] | None:
        if self.dialect.name != "sqlite":
            return own_copy(self._connection)
        path = self._sqlite_file()
        if not path:
            # One in memory has a second way in only if it has a name, as Django's test databases do.
            shared = "cache=shared" in str(self._connection.settings_dict["NAME"])
            return own_copy(self._connection) if shared else None
        copy = own_copy(self._connection)

        def existing() -> Any:
            connection = copy()
            # mode=rw: a file that has gone is an error, not a new empty database.
            connection.settings_dict["NAME"] = f"file:{quote(path)}?mode=rw"
            return connection

        return existing

    def close(self) -> None:
        self._connection.close()

    @property
    def _blob(self) -> str:
        """mysqlclient sends bytes as text, unless the statement says what they are."""
        return "_binary %s" if self.dialect.name == "mysql" else "%s"

    def _sqlite_file(self) -> str:
        rows = self.raw.execute("pragma database_list").fetchall()
        return next((str(row[2] or "") for row in rows if row[1] == "main"), "")

    def _refuse_closed(self) -> None:
        if self._connection.closed_in_transaction:
            raise TransactionLost(
                f"the connection {self._connection.alias!r} was closed inside the transaction, which is undone by that",
                rolled_back=True,
            )

    def _refuse_inherited(self) -> None:
        if self.dialect.name == "sqlite":
            refuse_inherited_file(self.raw)
        else:
            refuse_inherited(self.raw)


class OrmAdapter(_DjangoAdapter, Managed):
    """`connections[alias]`: a block of ours is an `atomic`, the outermost or one of many."""

    def __init__(self, connection: Any, *, durable: bool = False) -> None:
        super().__init__(connection)
        self.dialect = self.dialect.tying_each()  # parts of a transaction lie in one another
        self._durable = durable
        self._atomic: transaction.Atomic | None = None
        self._joined = False
        self._hook: Callable[[], None] | None = None
        self._committed = False
        self._handled: BaseException | None = None
        self._older_error: BaseException | None = None

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.in_atomic_block)

    @property
    def joined(self) -> bool:
        return self._joined if self._atomic is not None else self.in_transaction

    def refuse_marked(self) -> None:
        # One that was closed inside looks the same to Django; the next statement says what it is.
        if not self._connection.needs_rollback or self._connection.closed_in_transaction:
            return
        error = self._last_error()
        raise TransactionLost(
            "Django has marked the transaction for rollback, after a database error that was ignored or by "
            "set_rollback(True): both its changes and its messages are undone. Put what may fail into an atomic() of "
            "its own; to undo a block on purpose, raise an exception",
            rolled_back=True,
        ) from (None if error is self._older_error else error)

    def _last_error(self) -> BaseException | None:
        """The last one that Django has marked a transaction for; it never forgets it."""
        error: BaseException | None = getattr(self._connection, "rollback_exc", None)
        return error

    def begin(self, first: Statement | None = None) -> None:
        if self._atomic is None:
            self._enter()
        if first is not None:
            try:
                self.execute(first)
            except BaseException:
                self.rollback()
                raise

    def _enter(self) -> None:
        connection = self._connection
        self.attach()
        if not connection.in_atomic_block and not connection.get_autocommit():
            raise UnsupportedConnection(
                f"the connection {connection.alias!r} is in manual transaction management (AUTOCOMMIT or "
                "set_autocommit(False)), in which Django tells nobody of a commit; use it with autocommit on"
            )
        self._refuse_inherited()
        joined, self._older_error = self.in_transaction, self._last_error()
        atomic = transaction.Atomic(connection.alias, True, self._durable)
        atomic.__enter__()
        self._atomic, self._joined, self._hook, self._committed = atomic, joined, None, False
        self._ending.begun(explicitly=not joined)

    def when_committed(self, hook: Callable[[], None]) -> None:
        if self.joined:
            # It is dropped with our savepoint, and with each one around it.
            self._connection.on_commit(hook, robust=True)
        else:
            self._hook = hook

    def commit(self) -> None:
        self._handled = sys.exc_info()[1]
        if self._atomic is None:
            raise ended()
        if self._joined:
            self._leave(None)
            return
        self._ending.before_commit(self.raw)
        self._connection.on_commit(self._after_commit, robust=True)
        hooks = self._connection.run_on_commit
        hooks.insert(0, hooks.pop())  # before those of the user: one of them may fail, and then no other is called
        self._leave(None)
        if not self._committed:
            raise TransactionLost("Django has rolled the transaction back instead of committing it", rolled_back=True)

    def _after_commit(self) -> None:
        self._committed = True
        if self._hook is not None:
            self._hook()

    def rollback(self) -> None:
        if self._atomic is not None:
            self._leave(_Undone)

    def _leave(self, why: type[BaseException] | None) -> None:
        atomic, self._atomic = self._atomic, None
        assert atomic is not None  # noqa: S101
        atomic.__exit__(why, None, None)

    def close(self) -> None:
        if not self._connection.in_atomic_block:  # else somebody's transaction goes on in it
            self._connection.close()

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        if self._joined:
            # The savepoint was not released: Django went back to it, or has marked all around it for a rollback.
            return isinstance(error, Exception)
        return self._ending.failure_is_certain(_first_of(error, self._handled))


class CopyAdapter(_DjangoAdapter):
    """A connection that the ORM does not know of, for transactions of our own."""

    _begun = False

    @property
    def in_transaction(self) -> bool:
        return self._begun or bool(self._connection.in_atomic_block)

    def begin(self, first: Statement | None = None) -> None:
        if not self._begun:
            self.attach()
            self._connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
            self._begun = True
            self._ending.begun(explicitly=True)
        if first is not None:
            self.execute(first)

    def commit(self) -> None:
        self._ending.before_commit(self.raw)
        self._connection.commit()
        self._end()

    def rollback(self) -> None:
        if self._begun:
            self._connection.rollback()
            self._end()

    def _end(self) -> None:
        self._begun = False
        self._connection.set_autocommit(True)

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        return self._ending.failure_is_certain(error)


class _Undone(Exception):
    """What an `atomic` is told when it is to be rolled back."""


def _first_of(error: BaseException, handled: BaseException | None) -> BaseException:
    """The first of the errors that followed each other: that of the commit, and not of the attempts to put the
    connection in order afterwards. `handled` was there before."""
    while error.__context__ is not None and error.__context__ is not handled:
        error = error.__context__
    return error
