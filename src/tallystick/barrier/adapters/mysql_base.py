"""What the adapters of MySQL's drivers have in common, sync and async."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Literal

from tallystick.barrier.adapters import pools
from tallystick.barrier.adapters.inherited_connections import refuse_inherited
from tallystick.barrier.adapters.state import DriverState, mysql_address
from tallystick.barrier.adapters.transaction_end import Ending
from tallystick.barrier.dialects.engines import MYSQL
from tallystick.barrier.statement import Result, Statement

ROLLBACK_SECONDS = 5.0
"""Maximum time for the rollback before a connection goes back to its pool."""


class _AnyMysqlAdapter:
    """Everything that needs no I/O."""

    raw_at_once = True
    dialect = MYSQL
    state: ClassVar[DriverState]

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._ending = Ending(self.dialect, self.state)

    @property
    def in_transaction(self) -> bool:
        return self.state.open(self._connection)

    @property
    def address(self) -> str:
        return mysql_address(self._connection)

    @property
    def raw(self) -> Any:
        return self._connection

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        return self._ending.failure_is_certain(error)


class MysqlAdapter(_AnyMysqlAdapter, ABC):
    """A sync connection, with or without autocommit."""

    is_async: Literal[False] = False

    def attach(self) -> None:
        """It is at hand."""

    def begin(self, first: Statement | None = None) -> None:
        refuse_inherited(self._connection)
        doubt = self.state.doubt(self._connection)
        if doubt:
            self.send(doubt)
        statement = self.state.begin(self._connection)
        if statement:
            self.send(statement)
        self._ending.begun(explicitly=bool(statement))
        if first is not None:
            self.execute(first)

    def commit(self) -> None:
        self._ending.before_commit(self._connection)
        self._connection.commit()
        self._ending.after_commit(self._connection)

    def rollback(self) -> None:
        try:
            self._connection.rollback()
        except Exception:
            # It must not be left as it is, for somebody to commit it later: without a connection it is undone.
            with contextlib.suppress(Exception):
                self._connection.close()
            raise

    def execute(self, statement: Statement) -> Result:
        self._ending.used = True
        if statement.returns_nothing:
            self.send(statement.sql)  # a cursor would cost more than the statement
            return Result()
        return self.run(statement)

    def close(self) -> None:
        self._connection.close()

    @abstractmethod
    def send(self, sql: str) -> None:
        """Run what has neither values nor a result."""

    @abstractmethod
    def run(self, statement: Statement) -> Result: ...

    @abstractmethod
    def opener(self) -> Callable[[], Any] | None: ...


class AsyncMysqlAdapter(_AnyMysqlAdapter, ABC):
    """An async connection, with or without autocommit."""

    is_async: Literal[True] = True

    async def attach(self) -> None:
        """It is at hand."""

    async def begin(self, first: Statement | None = None) -> None:
        refuse_inherited(self._connection)
        doubt = self.state.doubt(self._connection)
        if doubt:
            await self._connection.query(doubt)
        statement = self.state.begin(self._connection)
        if statement:
            await self._connection.begin()
        self._ending.begun(explicitly=bool(statement))
        if first is not None:
            await self.execute(first)

    async def commit(self) -> None:
        self._ending.before_commit(self._connection)
        await self._connection.commit()
        self._ending.after_commit(self._connection)

    async def rollback(self) -> None:
        try:
            await self._connection.rollback()
        except BaseException:
            self._connection.close()  # as above
            raise

    async def execute(self, statement: Statement) -> Result:
        self._ending.used = True
        if statement.returns_nothing:
            await self._connection.query(statement.sql)
            return Result()
        return await self.run(statement)

    async def close(self) -> None:
        pool = pools.owner_of(self._connection)
        if pool is None:
            await self._connection.ensure_closed()
        elif pools.is_lent(pool, self._connection):
            await self._give_back(pool)

    async def _give_back(self, pool: Any) -> None:
        try:
            # Without asking for the state: after an error the driver may not know that a transaction is open.
            with contextlib.suppress(Exception):  # the connection is closed then, and the server rolls back
                async with asyncio.timeout(ROLLBACK_SECONDS):
                    await self.rollback()
        finally:
            pools.release(pool, self._connection)

    @abstractmethod
    async def run(self, statement: Statement) -> Result: ...

    @abstractmethod
    def opener(self) -> Callable[[], Awaitable[Any]] | None: ...


def told(connection: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """What a connection has kept of its parameters, under these names or the same with an underscore before them."""
    found = {name: getattr(connection, f"_{name}", getattr(connection, name, None)) for name in names}
    return {name: value for name, value in found.items() if value is not None}
