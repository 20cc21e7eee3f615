"""Barrier, inbox and outbox tables in the service's own database: the other half of the tally stick.

    adapter = adapt(conn)                          # sqlite3, psycopg, PyMySQL or SQLAlchemy; sync or async
    run_sync(adapter, mark_committed(gid))         # or: await run_async(adapter, mark_committed(gid))

Operations only describe what to do; a runner does it over a connection. Most are part of the transaction that
the caller has open. Those that say so begin and end their own.
"""

from typing import Any

from tallystick.barrier.adapters import adapt, adapt_async, adapt_sync
from tallystick.barrier.adapters.base import Adapter, AsyncAdapter, SyncAdapter
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
from tallystick.barrier.operations import (
    CleanKind,
    Decision,
    OutboxRow,
    OutboxState,
    advance_offset,
    branch_once,
    clean,
    create_all,
    decide,
    decide_many,
    first_time,
    keep_digest,
    known_outcomes,
    mark_committed,
    outbox_change,
    outbox_claim,
    outbox_delete,
    outbox_put,
    prepared_drop,
    prepared_put,
    prepared_take,
    read_offset,
    table_definitions,
)
from tallystick.barrier.operations.tables import create_here
from tallystick.barrier.runner import run_async, run_sync
from tallystick.barrier.statement import Operation


def create_tables(connection: Any) -> None:
    """Create the tables that are missing; safe to call again.

    On PostgreSQL and SQLite they are part of a transaction that is open, which you commit. MySQL and MariaDB need a
    connection with no transaction open.
    """
    adapter = adapt_sync(connection)
    run_sync(adapter, create_here() if adapter.in_transaction else create_all())


async def create_tables_async(connection: Any) -> None:
    """The same over an async connection."""
    adapter = adapt_async(connection)
    await run_async(adapter, create_here() if adapter.in_transaction else create_all())


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
