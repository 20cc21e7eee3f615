"""aiosqlite: the rules of sqlite3, carried out on the connection's own thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import aiosqlite

from tallystick.barrier.adapters.inherited_connections import refuse_dead_thread
from tallystick.barrier.adapters.sqlite import SqliteAdapter, file_uri
from tallystick.barrier.dialects.engines import SQLITE
from tallystick.barrier.statement import Result, Statement


class AioSqliteAdapter:
    """An `aiosqlite.Connection`, in any of its transaction modes."""

    is_async: Literal[True] = True
    raw_at_once = True
    dialect = SQLITE

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection: Any = connection
        self._sync = SqliteAdapter(connection._conn)

    @property
    def in_transaction(self) -> bool:
        return self._sync.in_transaction

    @property
    def address(self) -> str:
        return self._sync.address

    @property
    def raw(self) -> Any:
        return self._connection

    async def attach(self) -> None:
        """It is at hand."""

    async def begin(self, first: Statement | None = None) -> None:
        # Threads are not forked with their process: nobody would ever answer in the child.
        refuse_dead_thread(getattr(self._connection, "_thread", None) or self._connection)
        await self._do(lambda: self._begin(first))

    def _begin(self, first: Statement | None) -> None:
        self._sync.begin(first)
        self._sync.path  # noqa: B018  read here, where statements can be run, for `address` and `opener`

    async def commit(self) -> None:
        await self._do(self._sync.commit)

    async def rollback(self) -> None:
        await self._do(self._sync.rollback)

    async def execute(self, statement: Statement) -> Result:
        return await self._do(lambda: self._sync.execute(statement))  # type: ignore[no-any-return]

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        return self._sync.commit_failure_is_certain(error)

    def opener(self) -> Callable[[], Awaitable[Any]] | None:
        path = self._sync.path
        if not path:
            return None
        return lambda: aiosqlite.connect(file_uri(path), uri=True, isolation_level=None)

    async def close(self) -> None:
        await self._connection.close()

    async def _do(self, action: Callable[[], Any]) -> Any:
        return await self._connection._execute(action)
