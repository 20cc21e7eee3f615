"""Deleting old rows, a bounded number at a time.

Age alone does not make a row safe to delete, the caller must know that

* `barrier`: the broker has resolved every transaction that is older, and no local transaction that old can still
  come to its end. A `rollback` row deleted too early lets a late local transaction commit unseen; a `msg` row
  deleted too early makes a check-back answer `rolled_back` for a committed one;
* `inbox`: the broker can no longer deliver messages that old (longer than its retention);
* `prepared`: no outcome can still arrive for a message that old;
* `digest`: nobody wants to compare messages that old any more.

Outbox rows and offsets are never deleted by age: the first are messages not sent, the second a place in a queue.
"""

from __future__ import annotations

from typing import Literal

from tallystick.barrier import queries
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.names import BARRIER_TABLE, DIGEST_TABLE, INBOX_TABLE, PREPARED_TABLE
from tallystick.barrier.operations.common import writing
from tallystick.barrier.statement import Statement, Steps, own_operation

CleanKind = Literal["barrier", "inbox", "prepared", "digest"]

_TABLES: dict[CleanKind, str] = {
    "barrier": BARRIER_TABLE,
    "inbox": INBOX_TABLE,
    "prepared": PREPARED_TABLE,
    "digest": DIGEST_TABLE,
}


@own_operation
def clean(
    sql: Dialect,
    kind: CleanKind,
    *,
    older_than: float,
    batch: int = 1_000,
    max_batches: int = 100,
    table: str | None = None,
) -> Steps[int]:
    """Delete rows older than `older_than` seconds by the database's clock; returns how many.

    Each batch is a transaction of its own, so no lock is held for long.
    """
    name = table or _TABLES[kind]
    if older_than < 0 or batch < 1:
        raise ValueError(f"older_than must be 0 or more and batch 1 or more, not {older_than} and {batch}")
    delete = queries.delete_old_outcomes if kind == "barrier" else queries.delete_old_rows
    total = 0
    for _ in range(max_batches):
        deleted = yield from writing(sql, _run(delete(sql, name, older_than, batch)))
        total += deleted
        if deleted < batch:
            break
    return total


def _run(statement: Statement) -> Steps[int]:
    return (yield statement).rowcount
