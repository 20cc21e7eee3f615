"""mysql-connector-python (`mysql.connector`), in C and in Python, from its pool or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mysql.connector.cursor import MySQLCursorBuffered

from tallystick.barrier.adapters.asking_state import ConnectorState
from tallystick.barrier.adapters.mysql_base import MysqlAdapter, told
from tallystick.barrier.adapters.placeholders import percent_style
from tallystick.barrier.adapters.state import DriverState
from tallystick.barrier.errors import UnsupportedConnection
from tallystick.barrier.statement import Result, Statement

# What a new connection takes over from an existing one, besides what is said of TLS.
_SAME = (
    *("user", "password", "password1", "password2", "password3", "host", "port", "unix_socket", "database"),
    *("sql_mode", "time_zone", "connection_timeout", "client_flags", "compress", "auth_plugin", "init_command"),
    *("ssl_disabled", "force_ipv6", "krb_service_principal", "openid_token_file"),
    *("oci_config_file", "oci_config_profile"),
)


class MysqlConnectorAdapter(MysqlAdapter):
    """A `MySQLConnection` or a `CMySQLConnection`, or the `PooledMySQLConnection` around one of them."""

    state: ClassVar[DriverState] = ConnectorState()

    def __init__(self, connection: Any) -> None:
        if type(connection).__module__.startswith("mysql.connector.aio"):
            raise UnsupportedConnection(
                "connections of mysql.connector.aio are not supported; use aiomysql or asyncmy, or a sync connection"
            )
        super().__init__(getattr(connection, "_cnx", connection))
        self._given = connection

    @property
    def in_transaction(self) -> bool:
        return _is_connected(self._connection) and super().in_transaction

    def begin(self, first: Statement | None = None) -> None:
        self._refuse_unread()
        super().begin(first)

    def execute(self, statement: Statement) -> Result:
        self._refuse_unread()
        return super().execute(statement)

    def send(self, sql: str) -> None:
        self._connection.cmd_query(sql)

    def run(self, statement: Statement) -> Result:
        connection = self._connection
        raw, connection._raw = connection._raw, False  # else it would return everything as bytes
        try:
            cursor = _quiet_cursor(connection)
            cursor.execute(percent_style(statement.sql), dict(statement.params) or None)
            return Result([_plain(row) for row in cursor.fetchall()] if cursor.with_rows else (), cursor.rowcount)
        finally:
            connection._raw = raw

    def opener(self) -> Callable[[], Any]:
        kind, parameters = type(self._connection), self._parameters()
        return lambda: kind(autocommit=True, **parameters)

    def close(self) -> None:
        self._given.close()  # which gives it back, if it is a pool's

    def _refuse_unread(self) -> None:
        connection = self._connection
        if connection.unread_result and not connection.can_consume_results:
            raise UnsupportedConnection(
                "a result of mysql.connector was not read to its end; fetch all rows of each cursor, or make cursors "
                "with buffered=True, before the block begins and before it ends"
            )

    def _parameters(self) -> dict[str, Any]:
        connection = self._connection
        given = told(connection, _SAME)
        given["charset"], given["collation"] = connection.charset, connection.collation
        if not connection._ssl_disabled:
            secured = {name if name.startswith("tls_") else f"ssl_{name}": it for name, it in connection._ssl.items()}
            given.update({name: value for name, value in secured.items() if value})
        return given


def _is_connected(connection: Any) -> bool:
    """As far as the connection knows; its own method would ask the server."""
    if hasattr(connection, "_cmysql"):
        return connection._cmysql is not None and bool(connection._cmysql.connected())
    return connection._handshake is not None


def _quiet_cursor(connection: Any) -> Any:
    """A plain one that reads all at once, whatever the service likes to have for itself. Its warnings are nobody's
    errors: that a table is there already is one."""
    if hasattr(connection, "_cmysql"):
        from mysql.connector.cursor_cext import CMySQLCursorBuffered

        cursor: Any = CMySQLCursorBuffered(connection)
    else:
        cursor = MySQLCursorBuffered(connection)
    cursor._handle_warnings = lambda: None
    return cursor


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Some columns come as a bytearray."""
    return tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
