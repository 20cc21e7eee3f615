"""The tether: proof, just before the commit, that the local transaction is still the one that was begun.

"A transaction is open" is not enough. The user's code, a driver or the database may have ended the first one in its
middle (a commit or rollback, DDL, a deadlock whose error was swallowed), and another one is open now, which holds only
the rest. So the first statement of the transaction leaves something that is gone with it, whatever ended it.
"""

from __future__ import annotations

from tallystick.barrier import queries
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import TransactionLost
from tallystick.barrier.faults import Aborted, NoSavepoint
from tallystick.barrier.operations.common import as_text, insert_once
from tallystick.barrier.operations.identity import Whereabouts, as_whereabouts, find_barrier
from tallystick.barrier.statement import Begin, Result, Statement, Steps, operation


@operation
def begin_tied(sql: Dialect, token: str) -> Steps[None]:
    """Begin a transaction, or join the one that is open, and mark it."""
    yield Begin(sql.tie(token))


@operation
def tie(sql: Dialect, token: str) -> Steps[None]:
    """Mark the transaction that is open, or that begins with this statement."""
    yield sql.tie(token)


@operation
def require_tied(sql: Dialect, token: str) -> Steps[None]:
    """Raise `TransactionLost` unless the transaction is the one that `tie` marked. To be asked once."""
    yield from _require(sql, token)


def insert_tied(
    sql: Dialect, token: str, row: queries.Row, params: dict[str, object], barrier: str
) -> Steps[Whereabouts | None]:
    """Insert, if the transaction is the one that `tie` marked, and tell where it finds the barrier; None if the row is
    there already. To be asked once; one statement does it all where the engine can."""
    if not sql.tether:
        yield from _require(sql, token)
    if not sql.insert_tells:
        here = yield from find_barrier(sql, barrier)
        return here if (yield from insert_once(Statement(queries.insert_text(sql, row), params))) else None
    text = queries.telling_insert_text(sql, row, barrier)
    found = yield from _unless_lost(Statement(text, {**params, "token": token} if sql.tether else params))
    if found.rows:
        return as_whereabouts(found.rows[0], barrier)
    if sql.tether:
        yield from _require(sql, token)
    return None


def _require(sql: Dialect, token: str) -> Steps[None]:
    found = yield from _unless_lost(sql.untie(token))
    if sql.tether and as_text(found.rows[0][0] or "") != token:
        raise lost()


def _unless_lost(statement: Statement) -> Steps[Result]:
    try:
        return (yield statement)
    except NoSavepoint:
        raise lost() from None
    except Aborted:
        raise TransactionLost(
            "the local transaction was aborted by an earlier error, which was ignored", rolled_back=True
        ) from None


def lost() -> TransactionLost:
    """The transaction that was begun is not the one that is open, if any is."""
    return TransactionLost(
        "the local transaction that was begun here has been ended before its commit: by a commit or rollback in "
        "between (of a session, of `with conn:`, of another block), by a statement that commits by itself, or by the "
        "database after an error that was ignored. Whatever ended it has committed or undone what came before it; what "
        "came after it is undone, unless the connection is in autocommit mode",
        rolled_back=False,
    )
