"""psycopg 3, sync and async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus
from psycopg.rows import tuple_row

from tallystick.barrier.adapters.base import CONNECT_SECONDS
from tallystick.barrier.adapters.inherited_connections import refuse_inherited
from tallystick.barrier.adapters.placeholders import percent_style
from tallystick.barrier.adapters.state import PostgresState, postgres_address
from tallystick.barrier.adapters.transaction_end import Ending
from tallystick.barrier.dialects.engines import POSTGRESQL
from tallystick.barrier.errors import TransactionOpen, UnsupportedConnection
from tallystick.barrier.statement import Result, Statement

C = TypeVar("C", psycopg.Connection[Any], psycopg.AsyncConnection[Any])

_STATE = PostgresState()
_NOTHING = Result()


class _PsycopgAdapter(Generic[C]):
    """What the two kinds have in common: everything that needs no I/O."""

    dialect = POSTGRESQL

    def __init__(self, connection: C) -> None:
        self._connection: C = connection
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

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        return self._ending.failure_is_certain(error)

    def _refuse_strange(self) -> None:
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

    def _refuse_unready(self) -> None:
        if self._connection.pgconn.pipeline_status:
            raise UnsupportedConnection(
                "the connection is in psycopg's pipeline mode, in which a statement does not tell its result; leave "
                "the pipeline before the block begins and before it ends"
            )
        if _STATE.busy(
            self._connection
        ):  # psycopg would wait for the end of it: for ever, if that is to come on this very thread
            raise UnsupportedConnection(
                "a statement is still under way on the connection: a cursor.stream() that was not read to its end, or "
                "one of another thread; end it, or close its generator, before the block begins and before it ends"
            )

    def _parameters(self) -> dict[str, Any]:
        given: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, **self._connection.info.get_parameters()}
        if self._connection.info.password:
            given["password"] = self._connection.info.password
        return given


def begin_command(connection: Any, first: Statement | None) -> bytes:
    """What begins a transaction and runs its first statement, in one trip to the server; empty if there is nothing to
    send, because psycopg will begin by itself. If one is open, `first` alone."""
    sql = b"" if first is None else first.sql.encode()
    if _STATE.open(connection) or not (sql or connection.autocommit):
        return sql
    begin: bytes = b"begin" if connection.autocommit else connection._get_tx_start_command()
    return begin + b"; " + sql if sql else begin


def run_command(connection: psycopg.Connection[Any], command: bytes) -> None:
    with connection.lock:
        connection.wait(_exchange(connection, command))


async def run_command_async(connection: psycopg.AsyncConnection[Any], command: bytes) -> None:
    async with connection.lock:
        await connection.wait(_exchange(connection, command))


def _exchange(connection: Any, command: bytes) -> Generator[Any, Any, None]:
    """As psycopg sends its own BEGIN: without a cursor, which would have a BEGIN sent before it."""
    connection.pgconn.send_query(command)
    last = (yield from generators.execute(connection.pgconn))[-1]
    if last.status != ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(last, encoding=connection.info.encoding)


@lru_cache(maxsize=512)
def _percent_style(sql: str) -> bytes:
    return percent_style(sql).encode()


def run_statement(connection: psycopg.Connection[Any], statement: Statement) -> Result:
    if statement.returns_nothing:
        run_command(connection, begin_command(connection, statement))
        return _NOTHING
    # Not `connection.cursor`: what the user's connection makes may take other parameters (RawCursor).
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    cursor.execute(_percent_style(statement.sql), statement.params or None)
    return Result(() if cursor.rownumber is None else cursor.fetchall(), cursor.rowcount)


async def run_statement_async(connection: psycopg.AsyncConnection[Any], statement: Statement) -> Result:
    if statement.returns_nothing:
        await run_command_async(connection, begin_command(connection, statement))
        return _NOTHING
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    await cursor.execute(_percent_style(statement.sql), statement.params or None)
    return Result(() if cursor.rownumber is None else await cursor.fetchall(), cursor.rowcount)


def _pool_of(connection: Any) -> Any:
    """The pool of psycopg_pool's that has handed it out."""
    return getattr(connection, "_pool", None)


class PsycopgAdapter(_PsycopgAdapter[psycopg.Connection[Any]]):
    """A `psycopg.Connection`, with or without autocommit."""

    is_async: Literal[False] = False
    raw_at_once = True

    def attach(self) -> None:
        """It is at hand."""

    def begin(self, first: Statement | None = None) -> None:
        self._refuse_strange()
        command = begin_command(self._connection, first)
        if command:
            run_command(self._connection, command)
        self._ending.begun(explicitly=bool(command))

    def commit(self) -> None:
        self._ending.before_commit(self._connection)
        self._connection.commit()
        self._ending.after_commit(self._connection)

    def rollback(self) -> None:
        if _STATE.busy(self._connection):
            self._connection.close()  # the server rolls back, and nobody has to wait for the end of a stream
        else:
            self._connection.rollback()

    def execute(self, statement: Statement) -> Result:
        self._refuse_unready()
        self._ending.used = True
        return run_statement(self._connection, statement)

    def opener(self) -> Callable[[], Any]:
        parameters = self._parameters()
        return lambda: psycopg.connect(autocommit=True, **parameters)

    def close(self) -> None:
        pool = _pool_of(self._connection)
        if pool is None:
            self._connection.close()
        else:
            pool.putconn(self._connection)


class AsyncPsycopgAdapter(_PsycopgAdapter[psycopg.AsyncConnection[Any]]):
    """A `psycopg.AsyncConnection`, with or without autocommit."""

    is_async: Literal[True] = True
    raw_at_once = True

    async def attach(self) -> None:
        """It is at hand."""

    async def begin(self, first: Statement | None = None) -> None:
        self._refuse_strange()
        command = begin_command(self._connection, first)
        if command:
            await run_command_async(self._connection, command)
        self._ending.begun(explicitly=bool(command))

    async def commit(self) -> None:
        self._ending.before_commit(self._connection)
        await self._connection.commit()
        self._ending.after_commit(self._connection)

    async def rollback(self) -> None:
        if _STATE.busy(self._connection):
            await self._connection.close()
        else:
            await self._connection.rollback()

    async def execute(self, statement: Statement) -> Result:
        self._refuse_unready()
        self._ending.used = True
        return await run_statement_async(self._connection, statement)

    def opener(self) -> Callable[[], Awaitable[Any]]:
        parameters = self._parameters()
        return lambda: psycopg.AsyncConnection.connect(autocommit=True, **parameters)

    async def close(self) -> None:
        pool = _pool_of(self._connection)
        if pool is None:
            await self._connection.close()
        else:
            await pool.putconn(self._connection)
