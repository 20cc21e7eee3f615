"""The standard library's sqlite3."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cached_property
from typing import Literal
from urllib.parse import quote

from tallystick.barrier.adapters.inherited_connections import refuse_inherited_file
from tallystick.barrier.adapters.state import SqliteState, sqlite_address
from tallystick.barrier.adapters.transaction_end import Ending
from tallystick.barrier.dialects.engines import SQLITE
from tallystick.barrier.statement import Result, Statement

_STATE = SqliteState()


def run_statement(connection: sqlite3.Connection, statement: Statement) -> Result:
    cursor = connection.cursor()
    cursor.row_factory = None  # whatever the service likes to have for itself
    try:
        cursor.execute(statement.sql, statement.params)
        return Result(cursor.fetchall(), cursor.rowcount)
    finally:
        cursor.close()


class SqliteAdapter:
    """A `sqlite3.Connection`, in any of its transaction modes."""

    is_async: Literal[False] = False
    raw_at_once = True
    dialect = SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ending = Ending(self.dialect, _STATE)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @property
    def address(self) -> str:
        return sqlite_address(self.path)

    @property
    def raw(self) -> sqlite3.Connection:
        return self._connection

    def attach(self) -> None:
        """It is at hand."""

    def begin(self, first: Statement | None = None) -> None:
        refuse_inherited_file(self._connection)
        statement = _STATE.begin(self._connection)
        if statement:
            self._connection.execute(statement)
        self._ending.begun(explicitly=bool(statement))
        if first is not None:
            self.execute(first)

    def commit(self) -> None:
        self._ending.before_commit(self._connection)
        self._end("commit")
        self._ending.after_commit(self._connection)

    def rollback(self) -> None:
        self._end("rollback")

    def execute(self, statement: Statement) -> Result:
        self._ending.used = True
        return run_statement(self._connection, statement)

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        return self._ending.failure_is_certain(error)

    def opener(self) -> Callable[[], sqlite3.Connection] | None:
        path = self.path
        if not path:
            return None
        return lambda: sqlite3.connect(file_uri(path), uri=True, isolation_level=None)

    def close(self) -> None:
        self._connection.close()

    def _end(self, word: Literal["commit", "rollback"]) -> None:
        # With autocommit=True (Python 3.12) the methods do nothing, not even after an explicit BEGIN.
        if getattr(self._connection, "autocommit", None) is not True:
            getattr(self._connection, word)()
        elif self._connection.in_transaction:
            self._connection.execute(word)

    @cached_property
    def path(self) -> str:
        """Of the database's file; empty if it is in memory."""
        rows = self.execute(Statement("pragma database_list")).rows
        path = next((row[2] for row in rows if row[1] in ("main", b"main")), "")
        return path.decode() if isinstance(path, bytes) else path or ""


def file_uri(path: str) -> str:
    # mode=rw: a file that has gone is an error, not a new empty database.
    return f"file:{quote(path)}?mode=rw"
