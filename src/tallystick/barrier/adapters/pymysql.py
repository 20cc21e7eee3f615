"""PyMySQL, with MySQL or MariaDB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pymysql
from pymysql.constants import CLIENT
from pymysql.cursors import Cursor

from tallystick.barrier.adapters.mysql_base import MysqlAdapter
from tallystick.barrier.adapters.placeholders import percent_style
from tallystick.barrier.adapters.state import DriverState, MysqlState
from tallystick.barrier.statement import Result, Statement

# What a new connection takes over from an existing one, besides the credentials.
_SAME = ("host", "port", "user", "password", "unix_socket", "bind_address", "charset", "collation", "sql_mode")


class PyMySQLAdapter(MysqlAdapter):
    """A `pymysql.Connection`."""

    state: ClassVar[DriverState] = MysqlState()

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.open) and super().in_transaction

    def send(self, sql: str) -> None:
        self._connection.query(sql)

    def run(self, statement: Statement) -> Result:
        cursor = self._connection.cursor(Cursor)
        rowcount = cursor.execute(percent_style(statement.sql), statement.params or None)
        return Result(cursor.fetchall() if cursor.description else (), rowcount)

    def opener(self) -> Callable[[], Any]:
        parameters = self._parameters()
        return lambda: pymysql.connect(autocommit=True, **parameters)

    def _parameters(self) -> dict[str, Any]:
        connection = self._connection
        given = {name: getattr(connection, name, None) for name in _SAME}
        given["database"] = connection.db
        given["connect_timeout"] = connection.connect_timeout or 10
        given["init_command"] = connection.init_command
        given["auth_plugin_map"] = connection._auth_plugin_map
        given["server_public_key"] = connection.server_public_key
        if not connection.ssl:
            given["ssl_disabled"] = True
        elif connection.client_flag & CLIENT.SSL:
            given["ssl"] = connection.ctx
        return {name: value for name, value in given.items() if value is not None}
