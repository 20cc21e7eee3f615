"""aiomysql and asyncmy, which has its interface; connections of their pools too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, ClassVar

from tallystick.barrier.adapters.mysql_base import AsyncMysqlAdapter, told
from tallystick.barrier.adapters.placeholders import percent_style, without_bytes
from tallystick.barrier.adapters.state import DriverState, MysqlState
from tallystick.barrier.statement import Result, Statement

# What a new connection takes over from an existing one, besides what the two name differently.
_SAME = ("host", "port", "user", "password", "unix_socket", "charset", "sql_mode", "init_command", "connect_timeout")


class AiomysqlAdapter(AsyncMysqlAdapter):
    """An `aiomysql.Connection`."""

    state: ClassVar[DriverState] = MysqlState()

    @property
    def in_transaction(self) -> bool:
        return not self._connection.closed and super().in_transaction

    async def run(self, statement: Statement) -> Result:
        cursor = import_module("aiomysql").Cursor(self._connection)
        cursor._show_warnings = _no_warnings
        return await _run(cursor, without_bytes(statement))

    def opener(self) -> Callable[[], Awaitable[Any]]:
        given = self._connection
        parameters = {**told(given, _SAME), "db": given.db, "ssl": given._ssl_context}
        parameters["auth_plugin"] = given._client_auth_plugin
        connect = import_module("aiomysql").connect
        return lambda: connect(autocommit=True, **parameters)


class AsyncmyAdapter(AsyncMysqlAdapter):
    """An `asyncmy.Connection`."""

    state: ClassVar[DriverState] = MysqlState()

    @property
    def in_transaction(self) -> bool:
        return self._connection.connected and super().in_transaction

    async def run(self, statement: Statement) -> Result:
        return await _run(import_module("asyncmy.cursors").Cursor(self._connection), statement)

    def opener(self) -> Callable[[], Awaitable[Any]] | None:
        given = self._connection
        if given._sock is not None:
            return None  # a socket of the service's own leads there once
        names = (*_SAME, "password_creator", "auth_plugin_map", "server_public_key")
        parameters = {**told(given, names), "database": given._db, "ssl": given._ssl_context}
        connect = import_module("asyncmy").connect
        return lambda: connect(autocommit=True, **parameters)


async def _run(cursor: Any, statement: Statement) -> Result:
    rowcount = await cursor.execute(percent_style(statement.sql), dict(statement.params) or None)
    return Result(await cursor.fetchall() if cursor.description else (), rowcount)


async def _no_warnings(connection: Any) -> None:
    """A warning of the server costs a trip, and is one of Python's: that a table is there already, for one."""
