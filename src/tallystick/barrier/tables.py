"""Creating the tables over a connection of any supported driver."""

from __future__ import annotations

from typing import Any

from tallystick.barrier.adapters.recognition import adapt_async, adapt_sync
from tallystick.barrier.operations.tables import create_all, create_here
from tallystick.barrier.runner import run_async, run_sync


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
