"""SQLite: one writer at a time, so a running transaction is seen as a busy database."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import DatabaseReadOnly, TablesMissing
from tallystick.barrier.faults import Contention, FaultKind, NoSavepoint
from tallystick.barrier.statement import Control, Statement, Step

_BUSY, _LOCKED, _READONLY, _CONSTRAINT = 5, 6, 8, 19


def _primary_code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def _set_wait(milliseconds: int) -> Statement:
    # A pragma takes no bound values; `:d` refuses anything that is not a whole number.
    return Statement(f"pragma busy_timeout = {milliseconds:d}")


class Sqlite(Dialect):
    """Any SQLite from 3.24 on (`on conflict`)."""

    name = "sqlite"
    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    ago = "strftime('%Y-%m-%d %H:%M:%f', 'now', :age)"
    barrier_now = now
    barrier_ago = ago
    single_writer = True
    insert_tells = sqlite3.sqlite_version_info >= (3, 35)
    # A temporary table hides one of the same name, and no other connection has it.
    schema_of = "(select max('temp') from sqlite_temp_master where lower(name) = lower('{table}'))"

    def age(self, seconds: float) -> object:
        return f"-{seconds:.3f} seconds"

    def unless_taken(self, columns: str) -> str:
        return f"on conflict ({columns}) do nothing"

    def or_replace(self, key: str, columns: Sequence[str]) -> str:
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
        return f"on conflict ({key}) do update set {changes}"

    def delete_some(self, table: str, condition: str) -> str:
        return f"delete from {table} where rowid in (select rowid from {table} where {condition} limit :limit)"

    def begin_reading(self, wait: float) -> Sequence[Step]:
        # No BEGIN: it would ask for the write lock, and a running writer is no reason not to read.
        return (_set_wait(round(wait * 1000)),)

    def begin_writing(self, wait: float) -> Sequence[Step]:
        return (_set_wait(round(wait * 1000)), Control.BEGIN)

    @property
    def read_wait(self) -> Statement:
        return Statement("pragma busy_timeout")

    def restore_wait(self, settings: tuple[Any, ...]) -> Statement:
        return _set_wait(settings[0])

    def meaning(self, error: BaseException) -> FaultKind | None:
        code = _primary_code(error)
        if code in (_BUSY, _LOCKED):
            return Contention
        if code == _READONLY:
            return DatabaseReadOnly
        # A missing table has no code of its own, and neither has a schema that is not attached.
        if code is not None and str(error).startswith(("no such table", "unknown database")):
            return TablesMissing
        if code is not None and str(error).startswith("no such savepoint"):
            return NoSavepoint
        return None

    def commit_refused(self, error: BaseException) -> bool:
        # After any other code SQLite may have undone the transaction or not: left to the check-back.
        return _primary_code(error) in (_BUSY, _LOCKED, _READONLY, _CONSTRAINT)
