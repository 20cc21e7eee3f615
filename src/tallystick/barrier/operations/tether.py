"""The tether: proof, just before the commit, that the local transaction is still the one that was begun.

"A transaction is open" is not enough. The user's code, a driver or the database may have ended the first one in its
middle (a commit or rollback, DDL, a deadlock whose error was swallowed), and another one is open now, which holds only
the rest. So the first statement of the transaction leaves something that is gone with it, whatever ended it.
"""

from __future__ import annotations

from typing import Any

from tallystick.barrier import queries
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import TransactionLost
from tallystick.barrier.faults import Aborted, NoSavepoint
from tallystick.barrier.names import BARRIER_TABLE
from tallystick.barrier.operations.common import as_text
from tallystick.barrier.operations.identity import Whereabouts, as_whereabouts, find_barrier
from tallystick.barrier.statement import Statement, Steps, operation


@operation
def tie(sql: Dialect, token: str) -> Steps[None]:
    """Mark the transaction that is open, or that begins with this statement."""
    yield sql.tie(token)


@operation
def require_tied(sql: Dialect, token: str) -> Steps[None]:
    """Raise `TransactionLost` unless the transaction is the one that `tie` marked. To be asked once."""
    yield from _require(sql, sql.untie(token), token)


@operation
def require_tied_here(sql: Dialect, token: str, *, table: str = BARRIER_TABLE) -> Steps[Whereabouts]:
    """The same, and where the transaction finds the barrier: in one statement where the engine can."""
    if not sql.tether:
        yield from _require(sql, sql.untie(token), token)
        return (yield from find_barrier(sql, table))
    found = yield from _require(sql, queries.select_whereabouts(sql, table), token)
    return as_whereabouts(found, table)


def _require(sql: Dialect, statement: Statement, token: str) -> Steps[tuple[Any, ...]]:
    try:
        found = yield statement
    except NoSavepoint:
        raise _lost() from None
    except Aborted:
        raise TransactionLost(
            "the local transaction was aborted by an earlier error, which was ignored", rolled_back=True
        ) from None
    row = found.rows[0] if found.rows else ()
    if sql.tether and as_text(row[-1] or "") != token:
        raise _lost()
    return row


def _lost() -> TransactionLost:
    return TransactionLost(
        "the local transaction that was begun here has been ended before its commit: by a commit or rollback in "
        "between (of a session, of `with conn:`, of another block), by a statement that commits by itself, or by the "
        "database after an error that was ignored. Whatever ended it has committed or undone what came before it; what "
        "came after it is undone, unless the connection is in autocommit mode",
        rolled_back=False,
    )
