"""psycopg2, with or without autocommit; also the connections of its pools, which are plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import psycopg2
from psycopg2 import extensions

from tallystick.barrier.adapters.base import CONNECT_SECONDS
from tallystick.barrier.adapters.inherited_connections import refuse_inherited
from tallystick.barrier.adapters.placeholders import percent_style
from tallystick.barrier.adapters.state import PostgresState, aborted, postgres_address
from tallystick.barrier.adapters.transaction_end import Ending
from tallystick.barrier.dialects.engines import POSTGRESQL
from tallystick.barrier.errors import UnsupportedConnection
from tallystick.barrier.statement import Result, Statement

_STATE = PostgresState()


class Psycopg2Adapter:
    """A `psycopg2.extensions.connection`."""

    is_async: Literal[False] = False
    raw_at_once = True
    dialect = POSTGRESQL

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._ending = Ending(self.dialect, _STATE)

    @property
    def in_transaction(self) -> bool:
        return _STATE.open(self._connection)

    @property
    def address(self) -> str:
        return postgres_address(self._connection)

    @property
    def raw(self) -> Any:
        return self._connection

    def attach(self) -> None:
        """It is at hand."""

    def begin(self, first: Statement | None = None) -> None:
        self._refuse_strange()
        begin = _STATE.begin(self._connection)
        if begin is None and first is None:
            self._ending.begun(explicitly=False)
            return
        # Without a `begin` psycopg2 sends its own, with what it was told about the isolation level.
        self._run("; ".join(part for part in (begin, first and first.sql) if part))
        self._ending.begun(explicitly=True)

    def commit(self) -> None:
        self._ending.before_commit(self._connection)
        if self._begun_by_driver():
            self._connection.commit()
        elif not _STATE.idle(self._connection) and self._run("commit") != "COMMIT":
            raise aborted()
        self._ending.after_commit(self._connection)

    def rollback(self) -> None:
        if self._begun_by_driver():
            self._roll_back_driver()
        elif not _STATE.idle(self._connection):
            self._run("rollback")

    def execute(self, statement: Statement) -> Result:
        self._ending.used = True
        # Not `connection.cursor()`: the cursors that the user's connection makes may return something else than tuples.
        with extensions.cursor(self._connection) as cursor:
            cursor.execute(percent_style(statement.sql), dict(statement.params) or None)
            return Result(cursor.fetchall() if cursor.description else (), cursor.rowcount)

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        # psycopg2 has refused to send it (inside a two-phase transaction, say), and what was open still is.
        if isinstance(error, psycopg2.ProgrammingError) and error.pgcode is None and _STATE.open(self._connection):
            return True
        return self._ending.failure_is_certain(error)

    def opener(self) -> Callable[[], Any]:
        info = self._connection.info
        given = {name: value for name, value in info.dsn_parameters.items() if value}
        given.setdefault("connect_timeout", str(CONNECT_SECONDS))
        if info.password:
            given["password"] = info.password

        def connect() -> Any:
            connection = psycopg2.connect(**given)
            connection.autocommit = True
            return connection

        return connect

    def close(self) -> None:
        self._connection.close()

    def _refuse_strange(self) -> None:
        if self._connection.async_:
            raise UnsupportedConnection(
                "the connection is in psycopg2's asynchronous mode (async_=1), which has no transactions of its own; "
                "use one without, or psycopg or asyncpg with the async client"
            )
        if self._connection.status == extensions.STATUS_PREPARED:
            raise UnsupportedConnection(
                "the connection holds a prepared two-phase transaction (tpc_prepare); end it first, or use another "
                "connection"
            )
        refuse_inherited(self._connection)

    def _begun_by_driver(self) -> bool:
        """Whether psycopg2 takes itself to be in a transaction. If not, its commit() and rollback() send nothing: in
        autocommit mode not even after an explicit BEGIN."""
        return bool(self._connection.status == extensions.STATUS_BEGIN)

    def _roll_back_driver(self) -> None:
        try:
            self._connection.rollback()
        except psycopg2.ProgrammingError:
            self._connection.tpc_rollback()  # the transaction that was joined was begun by tpc_begin

    def _run(self, sql: str) -> str | None:
        with extensions.cursor(self._connection) as cursor:
            cursor.execute(sql)
            status: str | None = cursor.statusmessage
            return status
