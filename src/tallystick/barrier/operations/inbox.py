"""Exactly once at the consumer: an inbox row per message, or the queue's offset, in the effect's transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from tallystick.barrier import queries
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.names import DIGEST_TABLE, INBOX_TABLE, OFFSET_TABLE, checked_text
from tallystick.barrier.operations.common import as_text, insert_once
from tallystick.barrier.statement import Steps, operation
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_name


@operation
def first_time(sql: Dialect, group: str, message_id: str, *, table: str = INBOX_TABLE) -> Steps[bool]:
    """Whether this group sees the message for the first time, as part of the transaction of its effect.

    False: the effect is there already, skip it. A second consumer of the same message waits here until the
    first one commits or rolls back, so one of them is told True.
    """
    check_name(group, "group")
    checked_text(message_id, "message_id", 255)
    return (yield from insert_once(queries.insert_inbox(sql, table, group, message_id)))


@operation
def forbid_commit(sql: Dialect) -> Steps[bool]:
    """Have the database refuse every commit of this transaction until `allow_commit`; False where it cannot.

    Only under it may rows be written ahead of their effects: else a handler that commits by itself would commit the
    rows of messages that nobody has handled yet.
    """
    statement = sql.forbid_commit()
    if statement is None:
        return False
    yield statement
    return True


@operation
def allow_commit(sql: Dialect) -> Steps[None]:
    """The effects of all rows are there."""
    yield sql.allow_commit()


@operation
def first_times(sql: Dialect, group: str, message_ids: Collection[str], *, table: str = INBOX_TABLE) -> Steps[set[str]]:
    """Which of these messages the group sees for the first time. Only after `forbid_commit` has said True."""
    check_name(group, "group")
    # In one order for all consumers: those that have messages in common wait for one another, never in a circle.
    ordered = sorted({checked_text(one, "message_id", 255) for one in message_ids})
    new = yield queries.insert_inboxes(sql, table, group, ordered)
    return {as_text(row[0]) for row in new.rows}


@operation
def keep_digest(sql: Dialect, group: str, message_id: str, value: bytes, *, table: str = DIGEST_TABLE) -> Steps[None]:
    """Keep what a message's value was when it was applied, as part of the transaction of its effect. Where a message is
    applied again (a group that was set back), the last one counts."""
    check_name(group, "group")
    checked_text(message_id, "message_id", 255)
    yield queries.upsert_digest(sql, table, group, message_id, hashlib.sha256(value).hexdigest())


@operation
def read_offset(
    sql: Dialect, group: str, store: str, topic: str, queue: int, *, table: str = OFFSET_TABLE
) -> Steps[int | None]:
    """The offset the group reads next in this queue; None before its first message."""
    result = yield queries.select_offset(table, _place(group, store, topic, queue))
    return int(result.rows[0][0]) if result.rows else None


@operation
def advance_offset(
    sql: Dialect,
    group: str,
    store: str,
    topic: str,
    queue: int,
    *,
    expected: int | None,
    new: int,
    table: str = OFFSET_TABLE,
) -> Steps[bool]:
    """Move the group's offset from `expected` (None: no offset yet) to `new`, in the effects' transaction.

    False: another consumer moved it, and these effects are its business; roll back.
    """
    if new == expected or new < 0:
        raise InvalidRequest(f"new offset {new} must be 0 or more and differ from {expected}", field="new")
    place = _place(group, store, topic, queue)
    if expected is None:
        return (yield from insert_once(queries.insert_offset(sql, table, place, new)))
    result = yield queries.update_offset(sql, table, place, expected, new)
    return result.rowcount == 1


def _place(group: str, store: str, topic: str, queue: int) -> dict[str, object]:
    return {
        "consumer_group": check_name(group, "group"),
        "store": checked_text(store, "store"),
        "topic": check_name(topic, "topic"),
        "queue": queue,
    }
