"""asyncpg: plain connections, and those of its pools.

asyncpg does not tell whether an error has aborted the transaction, but the server's answer to a COMMIT does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction

from tallystick.barrier.adapters.inherited_connections import refuse_inherited
from tallystick.barrier.adapters.placeholders import numbered_style
from tallystick.barrier.adapters.state import AsyncpgState, aborted, postgres_address
from tallystick.barrier.adapters.transaction_end import Ending
from tallystick.barrier.dialects.engines import POSTGRESQL
from tallystick.barrier.errors import TransactionOpen, UnsupportedConnection
from tallystick.barrier.statement import Result, Statement

_STATE = AsyncpgState()
_NOTHING = Result()


class _OurTransaction(Transaction):  # type: ignore[misc]
    """Stands for a transaction that was begun here: `conn.transaction()` inside it makes savepoints."""

    __slots__ = ()

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, None, False, False)


class AsyncpgAdapter:
    """An `asyncpg.Connection`, or the `PoolConnectionProxy` that `pool.acquire()` gives."""

    is_async: Literal[True] = True
    raw_at_once = True
    dialect = POSTGRESQL

    def __init__(self, connection: Any) -> None:
        # All statements go through what was given: a proxy knows when its connection has become somebody else's.
        self._connection = connection
        self._raw = _behind(connection)
        self._ending = Ending(self.dialect, _STATE)
        self._beginning = False

    @property
    def in_transaction(self) -> bool:
        return self._is_ours() and _STATE.open(self._raw)

    @property
    def address(self) -> str:
        return postgres_address(self._raw)

    @property
    def raw(self) -> Any:
        return self._raw

    async def attach(self) -> None:
        """It is at hand."""

    async def begin(self, first: Statement | None = None) -> None:
        self._refuse_strange()
        if _STATE.open(self._raw):
            # As far as is known: a statement that was cancelled, a commit say, has not told its end. This waits for it.
            await self._connection.execute("show transaction_isolation")
        begin = None if _STATE.open(self._raw) else "begin"
        self._beginning = True  # until it is answered, nobody knows
        if begin or first is not None:
            await self._connection.execute("; ".join(part for part in (begin, first and first.sql) if part))
        self._raw._top_xact = _OurTransaction(self._raw)
        self._beginning = False
        self._ending.begun(explicitly=True)

    async def commit(self) -> None:
        self._ending.before_commit(self._raw)
        if _STATE.open(self._raw) or not self._is_usable():
            self._forget()
            await commit_and_tell(self._connection)
        self._ending.after_commit(self._raw)

    async def rollback(self) -> None:
        if not (self._beginning or _STATE.open(self._raw)) and self._is_usable():
            self._forget()
            return
        was_usable = self._is_usable()
        try:
            self._forget()
            await self._connection.execute("rollback")
        except BaseException as failure:
            # A statement of another task is under way, or this one was cancelled: what is left must not be taken for
            # a part of the next transaction. The server rolls back what has no connection.
            if was_usable and self._is_ours():
                self._connection.terminate()
            if not (was_usable and isinstance(failure, asyncpg.InterfaceError)):
                raise
        self._beginning = False

    async def execute(self, statement: Statement) -> Result:
        self._ending.used = True
        if statement.returns_nothing:
            await self._connection.execute(statement.sql)
            return _NOTHING
        numbered = numbered_style(statement.sql)
        values = [statement.params[name] for name in numbered.names]
        if not numbered.returns_rows:
            return Result((), _touched(await self._connection.execute(numbered.sql, *values)))
        found = await self._connection.fetch(numbered.sql, *values, record_class=asyncpg.Record)
        return Result([tuple(record) for record in found], len(found))

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        # asyncpg has refused to send it (another task's statement is under way), and what was open still is.
        if isinstance(error, asyncpg.InterfaceError) and self.in_transaction:
            return True
        return self._ending.failure_is_certain(error)

    def opener(self) -> Callable[[], Awaitable[Any]]:
        pool = _pool_of(self._connection)
        if pool is not None:
            return lambda: connect_as(pool)
        parameters = _parameters(self._raw)
        return lambda: asyncpg.connect(**parameters)

    async def close(self) -> None:
        pool = _pool_of(self._connection)
        if pool is None:
            await self._connection.close()
        else:
            await pool.release(self._connection)

    def _refuse_strange(self) -> None:
        if not self._is_ours():
            raise UnsupportedConnection(
                "the connection was released to its asyncpg pool, and may be another task's by now: keep the block "
                "inside `async with pool.acquire() as conn:`"
            )
        if not isinstance(self._raw._top_xact, _OurTransaction | None):
            raise TransactionOpen(
                "the connection is inside a conn.transaction() block, which ends the transaction by itself; "
                "use Tallystick's block instead of it, or around it"
            )
        refuse_inherited(self._raw)

    def _is_ours(self) -> bool:
        """Whether the pool has not been given it back."""
        return self._raw is not None and _behind(self._connection) is self._raw

    def _is_usable(self) -> bool:
        return self._is_ours() and not self._raw.is_closed()

    def _forget(self) -> None:
        if self._is_ours() and isinstance(self._raw._top_xact, _OurTransaction):
            self._raw._top_xact = None


async def commit_and_tell(connection: Any) -> None:
    """Commit; `TransactionLost` if that was in truth a rollback."""
    if await connection.execute("commit") != "COMMIT":
        raise aborted()


async def connect_as(pool: Any) -> Any:
    """A connection of our own, made as a pool makes its: with its list of hosts, its password function and its SSL."""
    kinds = {"connection_class": pool._connection_class, "record_class": pool._record_class}
    return await pool._connect(*pool._connect_args, loop=asyncio.get_running_loop(), **kinds, **pool._connect_kwargs)


def _behind(connection: Any) -> Any:
    """The connection itself; None for a proxy whose connection was released."""
    return connection._con if isinstance(connection, PoolConnectionProxy) else connection


def _pool_of(connection: Any) -> Any:
    return connection._holder._pool if isinstance(connection, PoolConnectionProxy) else None


def _touched(status: str) -> int:
    """The number of rows in `INSERT 0 1`, `UPDATE 3`; 0 where there is none."""
    last = status.rpartition(" ")[2]
    return int(last) if last.isdigit() else 0


def _parameters(raw: Any) -> dict[str, Any]:
    """What opens another connection to the same server, encrypted as this one is."""
    given, options, address = raw._params, raw._config, raw._addr
    host, port = (address, None) if isinstance(address, str) else address[:2]
    encrypted = raw._transport.get_extra_info("ssl_object") is not None
    return {
        "host": host,
        "port": port,
        "user": given.user,
        "password": given.password,
        "database": given.database,
        "ssl": given.ssl if encrypted else False,
        "direct_tls": encrypted and getattr(given, "ssl_negotiation", "") == "direct",
        "server_settings": given.server_settings,
        "target_session_attrs": given.target_session_attrs,
        "krbsrvname": given.krbsrvname,
        "gsslib": given.gsslib,
        **options._asdict(),
    }
