"""SQLAlchemy over asyncpg, where nothing but the server's answer to COMMIT tells a commit from a rollback.

SQLAlchemy keeps a transaction of asyncpg's for each of its own, which drops that answer. So, just before the commit, it
is given one that does not.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.util import await_only

from tallystick.barrier.adapters.asyncpg import commit_and_tell
from tallystick.barrier.errors import UnsupportedConnection


class _TellingTransaction:
    """In the place of an `asyncpg.transaction.Transaction`: its commit raises if it was in truth a rollback."""

    def __init__(self, transaction: Any, raw: Any) -> None:
        self._transaction = transaction
        self._raw = raw

    async def commit(self) -> None:
        self._raw._top_xact = None
        await commit_and_tell(self._raw)

    async def rollback(self) -> None:
        await self._transaction.rollback()


def have_commit_told(connection: Connection) -> None:
    adapted: Any = connection.connection.dbapi_connection
    if adapted._transaction is not None:
        adapted._transaction = _TellingTransaction(adapted._transaction, adapted.driver_connection)


def roll_back_driver(connection: Connection) -> None:
    """Also what SQLAlchemy does not know of any more, after a commit that failed."""
    raw: Any = connection.connection.driver_connection
    connection.connection.rollback()
    if raw.is_in_transaction():
        await_only(raw.execute("rollback"))


def refuse_autocommit(connection: Connection) -> None:
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise UnsupportedConnection(
            "SQLAlchemy does not commit a transaction that was begun in asyncpg's autocommit mode; give the block a "
            "connection without isolation_level='AUTOCOMMIT', as in conn.execution_options(isolation_level="
            "'READ COMMITTED')"
        )
