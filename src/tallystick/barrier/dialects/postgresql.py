"""PostgreSQL, and what speaks its protocol."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import DatabaseReadOnly, TablesMissing
from tallystick.barrier.faults import Aborted, Contention, FaultKind
from tallystick.barrier.statement import Control, Statement, Step

_MEANINGS: dict[str, FaultKind] = {
    "55P03": Contention,  # lock_timeout
    "57014": Contention,  # statement_timeout, which may be shorter than ours
    "40P01": Contention,  # deadlock
    "40001": Contention,  # serialization failure
    "25P02": Aborted,
    "42P01": TablesMissing,
    "3F000": TablesMissing,  # no such schema
    "25006": DatabaseReadOnly,
}

# Classes after which the server may be gone or the result unknown (08007 and 40003 say so in words).
_UNCERTAIN_CLASSES = ("08", "53", "57", "58", "F0", "XX")
_UNCERTAIN_STATES = ("40003",)

# Any constant will do, as long as every process uses the same.
_TABLES_LOCK = 0x7A117_571C


def _state(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else None


class PostgreSQL(Dialect):
    """PostgreSQL 9.6 and later."""

    name = "postgresql"
    # Not now(): that is the time the transaction began, and a long one would be born old.
    now = "clock_timestamp()"
    ago = "clock_timestamp() - make_interval(secs => :age)"
    barrier_now = now
    barrier_ago = ago
    lock = "for update"
    lock_free = "for update skip locked"
    arrays = True
    schema_of = (
        "(select cast(cast(relnamespace as regnamespace) as text) from pg_catalog.pg_class "
        "where oid = cast('{table}' as regclass))"
    )
    path = "current_setting('search_path')"
    place = (
        "select 1 from pg_catalog.pg_proc where proname = 'pg_control_system' "
        "and has_function_privilege(oid, 'execute')",
        "select concat_ws('/', system_identifier, (select oid from pg_catalog.pg_database where datname = "
        "current_database()), cast(cast('{table}' as regclass) as oid)) from pg_catalog.pg_control_system()",
    )
    tether = "current_setting('tallystick.block', true)"
    insert_tells = True
    # While a table is small or not analyzed, a list of gids costs a scan of all of it, however short the list is.
    at_once = 2_000

    def lead(self) -> Sequence[Step]:
        # For the transaction only: behind a pooler the session is shared with others.
        if not self.led_to:
            return ()
        return (Statement("select set_config('search_path', :path, true)", {"path": self.led_to}),)

    def tie(self, token: str) -> Statement:
        # Not a savepoint: it costs a transaction id, and `set transaction` is refused after it.
        return Statement(f"set local tallystick.block = '{token}'", returns_nothing=True)

    def untie(self, token: str) -> Statement:
        return Statement(f"select {self.tether}")

    def forbid_commit(self) -> Statement:
        # A cursor that is to outlive its transaction is read when that commits: this one cannot be, and says why. The
        # clock keeps the planner from reading it at once.
        why = "a handler of several messages must not commit; it was rolled back at "
        return Statement(
            "declare tallystick_batch no scroll cursor with hold for "
            f"select cast(concat('{why}', clock_timestamp()) as integer)",
            returns_nothing=True,
        )

    def allow_commit(self) -> Statement:
        return Statement("close tallystick_batch", returns_nothing=True)

    def age(self, seconds: float) -> object:
        return float(seconds)

    def unless_taken(self, columns: str) -> str:
        return f"on conflict ({columns}) do nothing"

    def or_replace(self, key: str, columns: Sequence[str]) -> str:
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
        return f"on conflict ({key}) do update set {changes}"

    def delete_some(self, table: str, condition: str) -> str:
        return f"delete from {table} where ctid = any(array(select ctid from {table} where {condition} limit :limit))"

    def begin_reading(self, wait: float) -> Sequence[Step]:
        return self.begin_writing(wait)

    def begin_writing(self, wait: float) -> Sequence[Step]:
        milliseconds = max(1, round(wait * 1000))  # 0 would mean: wait for ever
        return (
            Control.BEGIN,
            # Under a stricter default the insert's wait would end in a serialization failure, not in an answer.
            Statement("set transaction isolation level read committed"),
            Statement("select set_config('lock_timeout', :wait, true)", {"wait": f"{milliseconds}ms"}),
        )

    def lock_creating(self) -> Sequence[Step]:
        # `create table if not exists` alone fails when two sessions run it at the same moment.
        return (Statement("select pg_advisory_xact_lock(:lock)", {"lock": _TABLES_LOCK}),)

    def begin_creating(self, wait: float) -> Sequence[Step]:
        return (*self.begin_writing(wait), *self.lock_creating())

    def meaning(self, error: BaseException) -> FaultKind | None:
        return _MEANINGS.get(_state(error) or "")

    def commit_refused(self, error: BaseException) -> bool:
        state = _state(error)
        if state is None or state in _UNCERTAIN_STATES:
            return False
        return state[:2] not in _UNCERTAIN_CLASSES


class PreparedPostgreSQL(PostgreSQL):
    """Over a driver that keeps every statement's text prepared: one text for all blocks, or theirs would push out the
    service's own."""

    def tie(self, token: str) -> Statement:
        return Statement("select set_config('tallystick.block', :token, true)", {"token": token})
