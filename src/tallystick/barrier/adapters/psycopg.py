"""psycopg 3, sync and async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, TypeVar

import psycopg
from psycopg.rows import tuple_row

from tallystick.barrier.adapters.inherited_connections import refuse_inherited
from tallystick.barrier.adapters.placeholders import percent_style
from tallystick.barrier.adapters.state import PostgresState, postgres_address
from tallystick.barrier.adapters.transaction_end import Ending
from tallystick.barrier.dialects import POSTGRESQL
from tallystick.barrier.errors import TransactionOpen, UnsupportedConnection
from tallystick.barrier.statement import Result, Statement

C = TypeVar("C", psycopg.Connection[Any], psycopg.AsyncConnection[Any])


class _PsycopgAdapter(Generic[C]):
    """What the two kinds have in common: everything that needs no I/O."""

    dialect = POSTGRESQL

    def __init__(self, connection: C) -> None:
        self._connection: C = connection
        self._state = PostgresState()
        self._ending = Ending(self.dialect, self._state)

    @property
    def in_transaction(self) -> bool:
        return self._state.open(self._connection)

    @property
    def address(self) -> str:
        return postgres_address(self._connection)

    @property
    def raw(self) -> Any:
        return self._connection

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        return self._ending.failure_is_certain(error)

    def _begin_statement(self) -> str | None:
        # Inside `conn.transaction()` psycopg allows neither commit nor rollback, so it would not be ours to end.
        if getattr(self._connection, "_num_transactions", 0):
            raise TransactionOpen(
                "the connection is inside a conn.transaction() block, which ends the transaction by itself; "
                "use Tallystick's block instead of it, or around it"
            )
        if getattr(self._connection, "_tpc", None) is not None:
            raise TransactionOpen(
                "the connection is inside a two-phase transaction (tpc_begin), which commit() does not end; "
                "end it first, or use another connection"
            )
        self._refuse_unready()
        refuse_inherited(self._connection)
        return self._state.begin(self._connection)

    def _refuse_unready(self) -> None:
        if self._connection.pgconn.pipeline_status:
            raise UnsupportedConnection(
                "the connection is in psycopg's pipeline mode, in which a statement does not tell its result; leave "
                "the pipeline before the block begins and before it ends"
            )
        if self._busy:  # psycopg would wait for the end of it: for ever, if that is to come on this very thread
            raise UnsupportedConnection(
                "a statement is still under way on the connection: a cursor.stream() that was not read to its end, or "
                "one of another thread; end it, or close its generator, before the block begins and before it ends"
            )

    @property
    def _busy(self) -> bool:
        return self._state.busy(self._connection)

    def _parameters(self) -> dict[str, Any]:
        given: dict[str, Any] = dict(self._connection.info.get_parameters())
        if self._connection.info.password:
            given["password"] = self._connection.info.password
        return given


def _arguments(statement: Statement) -> tuple[bytes, Any]:
    return percent_style(statement.sql).encode(), statement.params or None


class PsycopgAdapter(_PsycopgAdapter[psycopg.Connection[Any]]):
    """A `psycopg.Connection`, with or without autocommit."""

    is_async: Literal[False] = False
    raw_at_once = True

    def begin(self) -> None:
        statement = self._begin_statement()
        if statement:
            self._connection.execute(statement.encode())
        self._ending.begun(explicitly=bool(statement))

    def commit(self) -> None:
        self._ending.before_commit(self._connection)
        self._connection.commit()
        self._ending.after_commit(self._connection)

    def rollback(self) -> None:
        if self._busy:
            self._connection.close()  # the server rolls back, and nobody has to wait for the end of a stream
        else:
            self._connection.rollback()

    def execute(self, statement: Statement) -> Result:
        self._refuse_unready()
        self._ending.used()
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(*_arguments(statement))
            return Result(cursor.fetchall() if cursor.description else (), cursor.rowcount)

    def opener(self) -> Callable[[], Any]:
        parameters = self._parameters()
        return lambda: psycopg.connect(autocommit=True, **parameters)

    def close(self) -> None:
        self._connection.close()


class AsyncPsycopgAdapter(_PsycopgAdapter[psycopg.AsyncConnection[Any]]):
    """A `psycopg.AsyncConnection`, with or without autocommit."""

    is_async: Literal[True] = True
    raw_at_once = True

    async def begin(self) -> None:
        statement = self._begin_statement()
        if statement:
            await self._connection.execute(statement.encode())
        self._ending.begun(explicitly=bool(statement))

    async def commit(self) -> None:
        self._ending.before_commit(self._connection)
        await self._connection.commit()
        self._ending.after_commit(self._connection)

    async def rollback(self) -> None:
        if self._busy:
            await self._connection.close()
        else:
            await self._connection.rollback()

    async def execute(self, statement: Statement) -> Result:
        self._refuse_unready()
        self._ending.used()
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(*_arguments(statement))
            return Result(await cursor.fetchall() if cursor.description else (), cursor.rowcount)

    def opener(self) -> Callable[[], Awaitable[Any]]:
        parameters = self._parameters()
        return lambda: psycopg.AsyncConnection.connect(autocommit=True, **parameters)

    async def close(self) -> None:
        await self._connection.close()
