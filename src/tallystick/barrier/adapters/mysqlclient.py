"""mysqlclient (`MySQLdb`), with MySQL or MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import MySQLdb
from MySQLdb.cursors import Cursor

from tallystick.barrier.adapters.asking_state import MysqlclientState
from tallystick.barrier.adapters.mysql_base import MysqlAdapter
from tallystick.barrier.adapters.placeholders import percent_style
from tallystick.barrier.adapters.state import DriverState
from tallystick.barrier.errors import UnsupportedConnection
from tallystick.barrier.statement import Result, Statement

_OUT_OF_SYNC = 2014


class MysqlclientAdapter(MysqlAdapter):
    """A `MySQLdb.Connection`. It does not keep its password, so no second one can be opened from it."""

    state: ClassVar[DriverState] = MysqlclientState()
    why_alone = "a connection of mysqlclient does not tell its password, so no second one can be opened from it"

    @property
    def in_transaction(self) -> bool:
        with _explained():
            return bool(self._connection.open) and super().in_transaction

    def begin(self, first: Statement | None = None) -> None:
        with _explained():
            super().begin(first)

    def commit(self) -> None:
        self._ending.before_commit(self._connection)
        # When this returns it is done; what else is open then (completion_type) would have to be asked.
        self._connection.commit()

    def send(self, sql: str) -> None:
        with _explained():
            self._connection.query(sql)

    def run(self, statement: Statement) -> Result:
        with _explained():
            cursor = Cursor(self._connection)  # whatever the service likes to have for itself
            rowcount = cursor.execute(percent_style(statement.sql), statement.params or None)
            return Result(cursor.fetchall() if cursor.description else (), rowcount)

    def opener(self) -> Callable[[], Any] | None:
        return None


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except MySQLdb.Error as error:
        if error.args[:1] != (_OUT_OF_SYNC,):
            raise
        raise UnsupportedConnection(
            "a result is still under way on the connection: one of an SSCursor that was not read to its end; read it, "
            "or close its cursor, before the block begins and before it ends"
        ) from error
