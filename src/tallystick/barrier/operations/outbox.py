"""The outbox: messages kept in the producer's own database until the broker has confirmed them.

`state` says what the broker is to be told next:

* `commit`: the local transaction has committed (the row is part of it), the messages are to be sent;
* `prepare`: a prepared message is on its way and the local transaction has not committed yet;
* `rollback`: the local transaction did not commit, the prepared message is to be withdrawn.

`outbox_change` moves a row only from the state it is thought to be in. So a re-driver that gives up on a
transaction (`prepare` to `rollback`) and that transaction itself (`prepare` to `commit`) cannot both succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, cast

from msgspec import Struct

from tallystick.barrier import queries
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import AlreadyDecided
from tallystick.barrier.faults import UnknownSyntax
from tallystick.barrier.names import BARRIER_TABLE, OUTBOX_TABLE, checked_text
from tallystick.barrier.operations.common import as_text, chunks, insert_once, writing
from tallystick.barrier.operations.identity import Whereabouts
from tallystick.barrier.operations.tether import insert_tied
from tallystick.barrier.statement import Result, Statement, Steps, operation, own_operation
from tallystick.core.names import check_gid

OutboxState = Literal["prepare", "commit", "rollback"]


class OutboxRow(Struct, frozen=True):
    """Something the broker has not confirmed. `attempts` counts the claims, this one included."""

    gid: str
    broker: str
    payload: bytes
    state: OutboxState
    attempts: int


@operation
def outbox_put(
    sql: Dialect,
    gid: str,
    broker: str,
    payload: bytes,
    *,
    state: OutboxState = "commit",
    table: str = OUTBOX_TABLE,
) -> Steps[None]:
    """Keep messages as part of the local transaction. Raises `AlreadyDecided` if the gid is in the outbox."""
    text = queries.insert_text(sql, queries.outbox_row(sql, table))
    if not (yield from insert_once(Statement(text, _params(gid, broker, payload, state)))):
        raise AlreadyDecided(gid, None)


@operation
def outbox_put_here(
    sql: Dialect,
    gid: str,
    broker: str,
    payload: bytes,
    token: str,
    *,
    barrier: str = BARRIER_TABLE,
    table: str = OUTBOX_TABLE,
) -> Steps[Whereabouts]:
    """The same, and where the transaction finds the barrier; `TransactionLost` unless it is the one that `tie` marked
    with the token. To be asked once."""
    params = _params(gid, broker, payload, "commit")
    here = yield from insert_tied(sql, token, queries.outbox_row(sql, table), params, barrier)
    if here is None:
        raise AlreadyDecided(gid, None)
    return here


@operation
def outbox_has(sql: Dialect, gid: str, *, table: str = OUTBOX_TABLE) -> Steps[bool]:
    """Whether the outbox has the row, as far as the connection can see."""
    return bool((yield queries.select_outbox_row(table, check_gid(gid))).rows)


def _params(gid: str, broker: str, payload: bytes, state: OutboxState) -> dict[str, object]:
    checked_text(broker, "broker", 255)
    return {"gid": check_gid(gid), "broker": broker, "payload": payload, "state": state}


@operation
def outbox_change(
    sql: Dialect, gid: str, *, expected: OutboxState, new: OutboxState, table: str = OUTBOX_TABLE
) -> Steps[bool]:
    """Move a row from one state to another, in the caller's transaction; False if it is not in `expected`."""
    if expected == new:
        raise ValueError(f"expected and new are both {new!r}")
    result = yield queries.update_outbox_state(sql, table, check_gid(gid), expected, new)
    return result.rowcount == 1


@own_operation
def outbox_claim(
    sql: Dialect,
    *,
    older_than: float,
    limit: int = 100,
    broker: str | None = None,
    except_for: Sequence[str] = (),
    table: str = OUTBOX_TABLE,
) -> Steps[list[OutboxRow]]:
    """Claim the rows that have not been touched for `older_than` seconds, the oldest first.

    A claim touches its rows. So several re-drivers share the rows, a re-driver that dies leaves its rows to the others,
    and no lock is held while messages are sent. A row may still be sent twice: the broker drops the second by its gid.

    Args:
        older_than: The least age, in seconds, of the last touch.
        limit: Maximum number of rows.
        broker: Claim only rows with this broker address.
        except_for: Without `broker`, claim no rows with these broker addresses.
    """

    def select(lock: str) -> Statement:
        return queries.select_outbox(sql, table, older_than, limit, lock, broker, except_for)

    return (yield from writing(sql, _claim(sql, table, select)))


def _claim(sql: Dialect, table: str, select: Callable[[str], Statement]) -> Steps[list[OutboxRow]]:
    try:
        found = yield select(sql.lock_free)
    except UnknownSyntax:
        found = yield select(sql.lock)
    rows = _rows(found)
    for gids in chunks([row.gid for row in rows]):
        yield queries.touch_outbox(sql, table, gids)
    return rows


def _rows(found: Result) -> list[OutboxRow]:
    return [
        OutboxRow(as_text(gid), as_text(broker), bytes(payload), cast(OutboxState, as_text(state)), attempts + 1)
        for gid, broker, payload, state, attempts in found.rows
    ]


@own_operation
def outbox_delete(sql: Dialect, gids: Iterable[str], *, table: str = OUTBOX_TABLE) -> Steps[int]:
    """Forget what the broker has confirmed; returns how many rows there were."""
    wanted = [check_gid(gid) for gid in dict.fromkeys(gids)]
    if not wanted:
        return 0
    return (yield from writing(sql, _delete(table, wanted)))


def _delete(table: str, gids: list[str]) -> Steps[int]:
    deleted = 0
    for some in chunks(gids):
        deleted += (yield queries.delete_outbox(table, some)).rowcount
    return deleted
