"""Branches: an effect that a coordinator may ask for more than once, or take back before it came.

A branch leaves a row (gid, branch, op) in the transaction of its effect, as dtm's branches do. What undoes another
branch writes that one's row too, so that the two can come in any order:

* a repeated branch finds its row, and has no second effect;
* an undoing branch that writes the row of the other one came first: there is nothing to undo;
* the other one then comes late, finds its row, and has no effect either.
"""

from __future__ import annotations

from tallystick.barrier import queries
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.names import BARRIER_TABLE, checked_text
from tallystick.barrier.operations.common import insert_once
from tallystick.barrier.statement import Steps, operation
from tallystick.core.names import check_gid

UNDOES = {"cancel": "try", "compensate": "action", "rollback": "action"}


@operation
def branch_once(
    sql: Dialect,
    gid: str,
    branch_id: str,
    op: str,
    *,
    trans_type: str = "msg",
    barrier_id: str = "01",
    table: str = BARRIER_TABLE,
) -> Steps[bool]:
    """Whether the branch is to be carried out, as part of the transaction of its effect; False: skip it.

    A second one of the same branch waits here until the first commits or rolls back, so one of them is told True.
    """
    key = {
        "trans_type": checked_text(trans_type, "trans_type", 45),
        "gid": check_gid(gid),
        "branch_id": checked_text(branch_id, "branch_id"),
        "barrier_id": checked_text(barrier_id, "barrier_id", 45),
    }
    undone = UNDOES.get(checked_text(op, "op", 45))
    nothing_to_undo = undone is not None and (
        yield from insert_once(queries.insert_branch(sql, table, key, undone, op))
    )
    new = yield from insert_once(queries.insert_branch(sql, table, key, op, op))
    return new and not nothing_to_undo
