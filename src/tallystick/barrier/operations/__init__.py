"""What can be done in the service's own database, each written once for every engine and driver."""

from tallystick.barrier.operations.barrier import (
    Decision,
    decide,
    decide_many,
    known_outcomes,
    mark_committed,
)
from tallystick.barrier.operations.branch_barrier import branch_once
from tallystick.barrier.operations.clean import CleanKind, clean
from tallystick.barrier.operations.inbox import advance_offset, first_time, keep_digest, read_offset
from tallystick.barrier.operations.outbox import (
    OutboxRow,
    OutboxState,
    outbox_change,
    outbox_claim,
    outbox_delete,
    outbox_put,
)
from tallystick.barrier.operations.prepared import prepared_drop, prepared_put, prepared_take
from tallystick.barrier.operations.tables import create_all, create_here, table_definitions

__all__ = [
    "CleanKind",
    "Decision",
    "OutboxRow",
    "OutboxState",
    "advance_offset",
    "branch_once",
    "clean",
    "create_all",
    "create_here",
    "decide",
    "decide_many",
    "first_time",
    "keep_digest",
    "known_outcomes",
    "mark_committed",
    "outbox_change",
    "outbox_claim",
    "outbox_delete",
    "outbox_put",
    "prepared_drop",
    "prepared_put",
    "prepared_take",
    "read_offset",
    "table_definitions",
]
