"""Consumer-side dedup: prepared messages wait in the consumer's own database for their outcome.

A prepared message is kept, the last one of a gid counting. Its commit takes it out again in the transaction of
the effect. A commit that finds nothing is a duplicate, or was never prepared: nothing happens.
"""

from __future__ import annotations

from tallystick.barrier import queries
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.names import PREPARED_TABLE
from tallystick.barrier.statement import Steps, operation
from tallystick.core.names import check_gid, check_name


@operation
def prepared_put(sql: Dialect, group: str, gid: str, payload: bytes, *, table: str = PREPARED_TABLE) -> Steps[None]:
    """Keep a prepared message; an earlier one of the same gid is replaced."""
    check_name(group, "group")
    yield queries.upsert_prepared(sql, table, group, check_gid(gid), payload)


@operation
def prepared_take(sql: Dialect, group: str, gid: str, *, table: str = PREPARED_TABLE) -> Steps[bytes | None]:
    """Take a prepared message out, in the transaction of its effect; None: nothing to do."""
    check_name(group, "group")
    found = yield queries.select_prepared(sql, table, group, check_gid(gid))
    if not found.rows:
        return None
    deleted = yield queries.delete_prepared(table, group, gid)
    return bytes(found.rows[0][0]) if deleted.rowcount == 1 else None


@operation
def prepared_drop(sql: Dialect, group: str, gid: str, *, table: str = PREPARED_TABLE) -> Steps[bool]:
    """Drop a prepared message that was rolled back; False if there was none."""
    check_name(group, "group")
    deleted = yield queries.delete_prepared(table, group, check_gid(gid))
    return deleted.rowcount == 1
