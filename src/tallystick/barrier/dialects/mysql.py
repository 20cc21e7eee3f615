"""MySQL and MariaDB, with InnoDB tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import DatabaseReadOnly, TablesMissing, TransactionOpen
from tallystick.barrier.faults import Contention, Duplicate, FaultKind, NoSavepoint, UnknownSyntax
from tallystick.barrier.statement import Control, Statement, Step

_MEANINGS: dict[int, FaultKind] = {
    1205: Contention,  # lock wait timeout
    1213: Contention,  # deadlock
    3572: Contention,  # locked, and told not to wait
    1020: Contention,  # the row changed since the snapshot (MariaDB with innodb_snapshot_isolation)
    1969: Contention,  # max_statement_time, which may be shorter than our wait
    3024: Contention,  # max_execution_time, the same on MySQL
    1062: Duplicate,
    1586: Duplicate,
    1064: UnknownSyntax,
    1146: TablesMissing,
    1049: TablesMissing,  # no such schema
    1290: DatabaseReadOnly,
    1792: DatabaseReadOnly,
    1836: DatabaseReadOnly,
    1568: TransactionOpen,
    1305: NoSavepoint,
}

# The only errors of a COMMIT that surely mean rolled back: deadlock or failed certification in a cluster, lock
# wait, read-only, and a replication hook that refused. After any other the engine may have committed.
_REFUSED_COMMITS = (1213, 1205, 1290, 1792, 1836, 3100, 3101)


def _number(error: BaseException) -> int | None:
    number = error.args[0] if error.args else None
    # mysql.connector's commit() in C raises an error of its own kind, which has it elsewhere.
    found = number if isinstance(number, int) else getattr(error, "errno", None)
    return found if isinstance(found, int) else None


def _set_wait(rows: int, tables: int) -> Statement:
    return Statement(
        "set session innodb_lock_wait_timeout = :rows, session lock_wait_timeout = :tables",
        {"rows": rows, "tables": tables},
    )


class MySQL(Dialect):
    """MySQL 5.7 and later, MariaDB 10.3 and later."""

    name = "mysql"
    now = "utc_timestamp(6)"
    ago = "utc_timestamp(6) - interval :age microsecond"
    # dtm's table fills its times with now(), in the session's time zone.
    barrier_now = "now()"
    barrier_ago = "now() - interval :age microsecond"
    lock = "for update"
    lock_free = "for update skip locked"
    # A plain read under REPEATABLE READ does not see a row that was committed after the snapshot.
    latest = "lock in share mode"
    create_commits = True
    schema_of = "database()"
    path = "database()"
    place = (
        # Not `server_uuid`: MariaDB has none. As a number: a time is shown in the zone of its session.
        "select concat_ws('/', @@hostname, @@port, @@datadir, table_schema, unix_timestamp(create_time)) "
        "from information_schema.tables where table_schema = {schema} and table_name = '{name}'",
    )
    hides_unseen = True
    insert_locks_gap = True

    def lead(self) -> Sequence[Step]:
        # A name cannot be a bound value; inside backticks only a backtick has a meaning.
        return (Statement(f"use `{self.led_to.replace('`', '``')}`"),) if self.led_to else ()

    def age(self, seconds: float) -> object:
        return round(seconds * 1_000_000)

    def unless_taken(self, columns: str) -> str:
        # Not `insert ignore`: it hides every other error as well. A duplicate is an error the operation handles;
        # it undoes only the statement.
        return ""

    def or_replace(self, key: str, columns: Sequence[str]) -> str:
        return "on duplicate key update " + ", ".join(f"{column} = values({column})" for column in columns)

    def delete_some(self, table: str, condition: str) -> str:
        return f"delete from {table} where {condition} limit :limit"

    def begin_reading(self, wait: float) -> Sequence[Step]:
        # Both the row wait and the wait for a table that is being altered are counted in whole seconds; for rows
        # MariaDB takes 0 (do not wait) and MySQL makes 1 of it.
        return (
            _set_wait(round(wait), max(1, round(wait))),
            # For the next transaction only. A dirty read would take a running transaction for a committed one.
            Statement("set transaction isolation level read committed"),
        )

    def begin_writing(self, wait: float) -> Sequence[Step]:
        return (*self.begin_reading(wait), Control.BEGIN)

    def begin_creating(self, wait: float) -> Sequence[Step]:
        return ()  # two that create the same table at once wait for each other by themselves

    @property
    def read_wait(self) -> Statement:
        return Statement("select @@session.innodb_lock_wait_timeout, @@session.lock_wait_timeout")

    def restore_wait(self, settings: tuple[Any, ...]) -> Statement:
        return _set_wait(*settings)

    def meaning(self, error: BaseException) -> FaultKind | None:
        return _MEANINGS.get(_number(error) or 0)

    def commit_refused(self, error: BaseException) -> bool:
        return _number(error) in _REFUSED_COMMITS
