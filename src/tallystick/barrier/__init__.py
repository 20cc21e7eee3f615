"""Barrier, inbox and outbox tables in the service's own database: the other half of the tally stick.

    adapter = adapt(conn)                          # sqlite3, psycopg, PyMySQL or SQLAlchemy; sync or async
    run_sync(adapter, mark_committed(gid))         # or: await run_async(adapter, mark_committed(gid))

Operations only describe what to do; a runner does it over a connection. Most are part of the transaction that
the caller has open. Those that say so begin and end their own.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.barrier.adapters.base import Adapter, AsyncAdapter, SyncAdapter
    from tallystick.barrier.adapters.recognition import adapt, adapt_async, adapt_sync
    from tallystick.barrier.errors import (
        AlreadyDecided,
        BarrierError,
        DatabaseReadOnly,
        InvalidTableName,
        TablesMissing,
        TransactionLost,
        TransactionOpen,
        UnsupportedConnection,
        WrongDatabase,
    )
    from tallystick.barrier.names import (
        BARRIER_TABLE,
        DIGEST_TABLE,
        INBOX_TABLE,
        OFFSET_TABLE,
        OUTBOX_TABLE,
        PREPARED_TABLE,
    )
    from tallystick.barrier.operations.barrier import Decision, decide, decide_many, known_outcomes, mark_committed
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
    from tallystick.barrier.operations.tables import create_all, table_definitions
    from tallystick.barrier.runner import run_async, run_sync
    from tallystick.barrier.statement import Operation
    from tallystick.barrier.tables import create_tables, create_tables_async

__all__ = [
    "BARRIER_TABLE",
    "DIGEST_TABLE",
    "INBOX_TABLE",
    "OFFSET_TABLE",
    "OUTBOX_TABLE",
    "PREPARED_TABLE",
    "Adapter",
    "AlreadyDecided",
    "AsyncAdapter",
    "BarrierError",
    "CleanKind",
    "DatabaseReadOnly",
    "Decision",
    "InvalidTableName",
    "Operation",
    "OutboxRow",
    "OutboxState",
    "SyncAdapter",
    "TablesMissing",
    "TransactionLost",
    "TransactionOpen",
    "UnsupportedConnection",
    "WrongDatabase",
    "adapt",
    "adapt_async",
    "adapt_sync",
    "advance_offset",
    "branch_once",
    "clean",
    "create_all",
    "create_tables",
    "create_tables_async",
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
    "run_async",
    "run_sync",
    "table_definitions",
]

if not TYPE_CHECKING:  # a type checker knows each name from above, and that there is no other
    __getattr__ = lazy_names(
        __name__,
        {
            "adapters.recognition": ("adapt", "adapt_async", "adapt_sync"),
            "adapters.base": ("Adapter", "AsyncAdapter", "SyncAdapter"),
            "errors": (
                "AlreadyDecided",
                "BarrierError",
                "DatabaseReadOnly",
                "InvalidTableName",
                "TablesMissing",
                "TransactionLost",
                "TransactionOpen",
                "UnsupportedConnection",
                "WrongDatabase",
            ),
            "names": ("BARRIER_TABLE", "DIGEST_TABLE", "INBOX_TABLE", "OFFSET_TABLE", "OUTBOX_TABLE", "PREPARED_TABLE"),
            "operations.clean": ("CleanKind", "clean"),
            "operations.barrier": ("Decision", "decide", "decide_many", "known_outcomes", "mark_committed"),
            "operations.outbox": (
                "OutboxRow",
                "OutboxState",
                "outbox_change",
                "outbox_claim",
                "outbox_delete",
                "outbox_put",
            ),
            "operations.inbox": ("advance_offset", "first_time", "keep_digest", "read_offset"),
            "operations.branch_barrier": ("branch_once",),
            "operations.tables": ("create_all", "table_definitions"),
            "operations.prepared": ("prepared_drop", "prepared_put", "prepared_take"),
            "runner": ("run_async", "run_sync"),
            "statement": ("Operation",),
            "tables": ("create_tables", "create_tables_async"),
        },
    )

# A child must know which connections it inherits, also if its parent has used no name of this package yet.
os.register_at_fork(before=lambda: import_module("tallystick.barrier.adapters.inherited_connections"))
