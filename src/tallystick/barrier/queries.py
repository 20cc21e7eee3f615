"""Every statement but the table definitions (those are in `sql/`), in one place.

A table's name has passed `checked_table` before it is put into the text; everything else is a bound value.
The barrier's constants are dtm's: a two-phase message is the row (gid, '00', 'msg', '01').
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.names import checked_table
from tallystick.barrier.statement import Statement
from tallystick.core.ops import Outcome

COMMITTED = "msg"
ROLLED_BACK = "rollback"
OUTCOMES: dict[str, Outcome] = {COMMITTED: "committed", ROLLED_BACK: "rolled_back"}

_BARRIER_ROW = "branch_id = '00' and op = 'msg' and barrier_id = '01'"


def _any_of(name: str, values: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The inside of `in (...)` for that many bound values."""
    params = {f"{name}{index}": value for index, value in enumerate(values)}
    return ", ".join(f":{key}" for key in params), params


# Inserts


class Row(NamedTuple):
    """An insert of one row that leaves an existing one alone: what differs between tables, as SQL text."""

    table: str
    columns: str
    values: str
    key: str


@lru_cache(maxsize=256)
def insert_text(sql: Dialect, row: Row) -> str:
    return f"insert into {row.table} ({row.columns}) values ({row.values}) {sql.unless_taken(row.key)}"


@lru_cache(maxsize=256)
def telling_insert_text(sql: Dialect, row: Row, barrier: str) -> str:
    """The same where an insert can tell: one row, the whereabouts of the barrier. Nothing is inserted, and nothing
    told, if the row is there, or if the transaction is not that of `:token`."""
    tied = f"select {row.values} where {sql.tether} = :token" if sql.tether else f"values ({row.values})"
    whereabouts = _whereabouts(sql, barrier)
    return f"insert into {row.table} ({row.columns}) {tied} {sql.unless_taken(row.key)} returning {whereabouts}"


# Barrier

_OUTCOME = "trans_type, gid, branch_id, op, barrier_id, reason, create_time, update_time"
_OUTCOME_KEY = "gid, branch_id, op, barrier_id"


@lru_cache(maxsize=256)
def outcome_row(sql: Dialect, table: str) -> Row:
    """An outcome by its `:gid` and `:reason`."""
    return Row(checked_table(table), _OUTCOME, _outcome_values(sql, ":gid"), _OUTCOME_KEY)


def _outcome_values(sql: Dialect, gid: str) -> str:
    return f"'msg', {gid}, '00', 'msg', '01', :reason, {sql.barrier_now}, {sql.barrier_now}"


def insert_outcomes(sql: Dialect, table: str, gids: Sequence[str], reason: str) -> Statement:
    """One statement for all of them: it inserts those without a row, or fails as a whole."""
    params: dict[str, object]
    if sql.arrays:
        params = {"gids": list(gids)}
        rows = f"select {_outcome_values(sql, 'one')} from unnest(cast(:gids as text[])) as one"
    else:
        _, named = _any_of("gid", gids)
        params = {**named}
        rows = "values " + ", ".join(f"({_outcome_values(sql, f':{name}')})" for name in params)
    into = f"insert into {checked_table(table)} ({_OUTCOME})"
    return Statement(f"{into} {rows} {sql.unless_taken(_OUTCOME_KEY)}", {**params, "reason": reason})


def rename_outcome(table: str, gid: str, new: str) -> Statement:
    """For an outcome that only the open transaction can see."""
    return Statement(
        f"update {checked_table(table)} set gid = :new where gid = :gid and {_BARRIER_ROW}", {"gid": gid, "new": new}
    )


def insert_branch(sql: Dialect, table: str, key: dict[str, str], op: str, reason: str) -> Statement:
    """The row of a branch; `key` is what all rows of one branch share: trans_type, gid, branch_id and barrier_id."""
    values = f":trans_type, :gid, :branch_id, :op, :barrier_id, :reason, {sql.barrier_now}, {sql.barrier_now}"
    row = Row(checked_table(table), _OUTCOME, values, _OUTCOME_KEY)
    return Statement(insert_text(sql, row), {**key, "op": op, "reason": reason})


_IDENTITY_ROW = "gid = 'tallystick' and branch_id = '00' and op = 'identity' and barrier_id = '01'"


def insert_identity(sql: Dialect, table: str, identity: str) -> Statement:
    """The row by which this very table is known; the first one stays."""
    key = {"trans_type": "tallystick", "gid": "tallystick", "branch_id": "00", "barrier_id": "01"}
    return insert_branch(sql, table, key, "identity", identity)


def select_whereabouts(sql: Dialect, table: str) -> Statement:
    """One row."""
    return Statement(f"select {_whereabouts(sql, table)}")


def _whereabouts(sql: Dialect, table: str) -> str:
    """The table's identity, the schema it is found in, and what makes the connection find it there."""
    schema = sql.schema_of.replace("{table}", checked_table(table))
    return f"(select reason from {table} where {_IDENTITY_ROW}), {schema}, {sql.path}"


def select_identity(sql: Dialect, table: str) -> Statement:
    """The table's identity as it is by now, whatever the transaction's snapshot says."""
    return Statement(f"select reason from {checked_table(table)} where {_IDENTITY_ROW} {sql.latest}")


def show_table(table: str) -> Statement:
    """The table's definition as the connection finds it."""
    return Statement(f"show create table {checked_table(table)}")


def place_questions(sql: Dialect, table: str) -> Iterator[Statement]:
    """Each is asked if the one before it has brought a row; the last one brings the place of the table. None where the
    engine has no such thing."""
    schema, _, name = checked_table(table).rpartition(".")
    there = f"'{schema}'" if schema else "database()"
    for text in sql.place:
        yield Statement(text.replace("{table}", table).replace("{schema}", there).replace("{name}", name))


def select_outcome(sql: Dialect, table: str, gid: str) -> Statement:
    """For use inside a transaction that may have an old snapshot."""
    return Statement(
        f"select gid, reason from {checked_table(table)} where gid = :gid and {_BARRIER_ROW} {sql.latest}",
        {"gid": gid},
    )


def select_outcomes(sql: Dialect, table: str, gids: Sequence[str], end: str = "") -> Statement:
    """`end` is the dialect's `latest` where a row is to be waited for."""
    params: dict[str, object]
    if sql.arrays:
        wanted, params = "gid = any(cast(:gids as text[]))", {"gids": list(gids)}
    else:
        names, bound = _any_of("gid", gids)
        wanted, params = f"gid in ({names})", {**bound}
    return Statement(f"select gid, reason from {checked_table(table)} where {wanted} and {_BARRIER_ROW} {end}", params)


def select_outcomes_between(table: str, low: str, high: str, most: int) -> Statement:
    """The first of those that lie between two gids, whoever's they are; in the order of the database, not in ours."""
    return Statement(
        f"select gid, reason from {checked_table(table)} where gid >= :low and gid <= :high and {_BARRIER_ROW} "
        "order by gid limit :most",
        {"low": low, "high": high, "most": most},
    )


# Inbox


def insert_inbox(sql: Dialect, table: str, group: str, message_id: str) -> Statement:
    return Statement(
        f"insert into {checked_table(table)} (consumer_group, message_id, created_at) "
        f"values (:consumer_group, :message_id, {sql.now}) {sql.unless_taken('consumer_group, message_id')}",
        {"consumer_group": group, "message_id": message_id},
    )


def insert_inboxes(sql: Dialect, table: str, group: str, message_ids: Sequence[str]) -> Statement:
    """One statement for all of them, where an engine has arrays: it returns those that had no row."""
    return Statement(
        f"insert into {checked_table(table)} (consumer_group, message_id, created_at) "
        f"select cast(:consumer_group as text), one, {sql.now} from unnest(cast(:message_ids as text[])) as one "
        f"{sql.unless_taken('consumer_group, message_id')} returning message_id",
        {"consumer_group": group, "message_ids": list(message_ids)},
    )


def upsert_digest(sql: Dialect, table: str, group: str, message_id: str, digest: str) -> Statement:
    return Statement(
        f"insert into {checked_table(table)} (consumer_group, message_id, digest, created_at) "
        f"values (:consumer_group, :message_id, :digest, {sql.now}) "
        f"{sql.or_replace('consumer_group, message_id', ('digest', 'created_at'))}",
        {"consumer_group": group, "message_id": message_id, "digest": digest},
    )


# Offsets

_PLACE = "consumer_group = :consumer_group and store = :store and topic = :topic and queue = :queue"


def select_offset(table: str, place: dict[str, object]) -> Statement:
    return Statement(f"select next_offset from {checked_table(table)} where {_PLACE}", place)


def insert_offset(sql: Dialect, table: str, place: dict[str, object], new: int) -> Statement:
    return Statement(
        f"insert into {checked_table(table)} (consumer_group, store, topic, queue, next_offset, updated_at) "
        f"values (:consumer_group, :store, :topic, :queue, :new, {sql.now}) "
        f"{sql.unless_taken('consumer_group, store, topic, queue')}",
        {**place, "new": new},
    )


def update_offset(sql: Dialect, table: str, place: dict[str, object], expected: int, new: int) -> Statement:
    return Statement(
        f"update {checked_table(table)} set next_offset = :new, updated_at = {sql.now} "
        f"where {_PLACE} and next_offset = :expected",
        {**place, "new": new, "expected": expected},
    )


# Outbox


@lru_cache(maxsize=256)
def outbox_row(sql: Dialect, table: str) -> Row:
    """What is to be sent, by its `:gid`, `:broker`, `:payload` and `:state`."""
    columns = "gid, broker, payload, state, attempts, created_at, touched_at"
    return Row(checked_table(table), columns, f":gid, :broker, :payload, :state, 0, {sql.now}, {sql.now}", "gid")


def update_outbox_state(sql: Dialect, table: str, gid: str, expected: str, new: str) -> Statement:
    return Statement(
        f"update {checked_table(table)} set state = :new, touched_at = {sql.now} "
        "where gid = :gid and state = :expected",
        {"gid": gid, "new": new, "expected": expected},
    )


def select_outbox(
    sql: Dialect, table: str, older_than: float, limit: int, lock: str, broker: str | None, except_for: Sequence[str]
) -> Statement:
    """Rows of a certain age, and those from the future: the clock was set back since, and their age says nothing."""
    params: dict[str, object] = {"age": sql.age(older_than), "limit": limit}
    wanted = f"(touched_at <= {sql.ago} or touched_at > {sql.now})"
    if broker is not None:
        wanted += " and broker = :broker"
        params["broker"] = broker
    elif except_for:
        names, bound = _any_of("broker", except_for)
        wanted += f" and broker not in ({names})"
        params |= bound
    return Statement(
        f"select gid, broker, payload, state, attempts from {checked_table(table)} "
        f"where {wanted} order by touched_at limit :limit {lock}",
        params,
    )


def select_outbox_row(table: str, gid: str) -> Statement:
    return Statement(f"select gid from {checked_table(table)} where gid = :gid", {"gid": gid})


def touch_outbox(sql: Dialect, table: str, gids: Sequence[str]) -> Statement:
    names, params = _any_of("gid", gids)
    return Statement(
        f"update {checked_table(table)} set attempts = attempts + 1, touched_at = {sql.now} where gid in ({names})",
        params,
    )


def delete_outbox(table: str, gids: Sequence[str]) -> Statement:
    names, params = _any_of("gid", gids)
    return Statement(f"delete from {checked_table(table)} where gid in ({names})", params)


# Prepared messages at a consumer


def upsert_prepared(sql: Dialect, table: str, group: str, gid: str, payload: bytes) -> Statement:
    return Statement(
        f"insert into {checked_table(table)} (consumer_group, gid, payload, created_at) "
        f"values (:consumer_group, :gid, :payload, {sql.now}) "
        f"{sql.or_replace('consumer_group, gid', ('payload', 'created_at'))}",
        {"consumer_group": group, "gid": gid, "payload": payload},
    )


def select_prepared(sql: Dialect, table: str, group: str, gid: str) -> Statement:
    return Statement(
        f"select payload from {checked_table(table)} where consumer_group = :consumer_group and gid = :gid {sql.lock}",
        {"consumer_group": group, "gid": gid},
    )


def delete_prepared(table: str, group: str, gid: str) -> Statement:
    return Statement(
        f"delete from {checked_table(table)} where consumer_group = :consumer_group and gid = :gid",
        {"consumer_group": group, "gid": gid},
    )


# Clean-up


def delete_old_outcomes(sql: Dialect, table: str, older_than: float, limit: int) -> Statement:
    """Only the rows of two-phase messages: a table shared with dtm holds others as well."""
    condition = f"create_time <= {sql.barrier_ago} and {_BARRIER_ROW} and trans_type = 'msg'"
    return Statement(sql.delete_some(checked_table(table), condition), {"age": sql.age(older_than), "limit": limit})


def delete_old_rows(sql: Dialect, table: str, older_than: float, limit: int) -> Statement:
    return Statement(
        sql.delete_some(checked_table(table), f"created_at <= {sql.ago}"),
        {"age": sql.age(older_than), "limit": limit},
    )
