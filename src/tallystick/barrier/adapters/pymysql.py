"""PyMySQL, with MySQL or MariaDB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pymysql
from pymysql.constants import CLIENT
from pymysql.cursors import Cursor

from tallystick.barrier.adapters.inherited_connections import refuse_inherited
from tallystick.barrier.adapters.placeholders import percent_style
from tallystick.barrier.adapters.state import MysqlState, mysql_address
from tallystick.barrier.adapters.transaction_end import Ending
from tallystick.barrier.dialects import MYSQL
from tallystick.barrier.statement import Result, Statement

# What a new connection takes over from an existing one, besides the credentials.
_SAME = ("host", "port", "user", "password", "unix_socket", "bind_address", "charset", "collation", "sql_mode")

_STATE = MysqlState()


class PyMySQLAdapter:
    """A `pymysql.Connection`, with or without autocommit."""

    is_async: Literal[False] = False
    raw_at_once = True
    dialect = MYSQL

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._ending = Ending(self.dialect, _STATE)

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.open) and _STATE.open(self._connection)

    @property
    def address(self) -> str:
        return mysql_address(self._connection)

    @property
    def raw(self) -> Any:
        return self._connection

    def attach(self) -> None:
        """It is at hand."""

    def begin(self, first: Statement | None = None) -> None:
        refuse_inherited(self._connection)
        doubt = _STATE.doubt(self._connection)
        if doubt:
            self._connection.query(doubt)
        statement = _STATE.begin(self._connection)
        if statement:
            self._connection.begin()
        self._ending.begun(explicitly=bool(statement))
        if first is not None:
            self.execute(first)

    def commit(self) -> None:
        self._ending.before_commit(self._connection)
        self._connection.commit()
        self._ending.after_commit(self._connection)

    def rollback(self) -> None:
        self._connection.rollback()

    def execute(self, statement: Statement) -> Result:
        self._ending.used = True
        if statement.returns_nothing:
            self._connection.query(statement.sql)  # a cursor would cost more than the statement
            return Result()
        cursor = self._connection.cursor(Cursor)
        rowcount = cursor.execute(percent_style(statement.sql), statement.params or None)
        return Result(cursor.fetchall() if cursor.description else (), rowcount)

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        return self._ending.failure_is_certain(error)

    def opener(self) -> Callable[[], Any]:
        parameters = self._parameters()
        return lambda: pymysql.connect(autocommit=True, **parameters)

    def close(self) -> None:
        self._connection.close()

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
