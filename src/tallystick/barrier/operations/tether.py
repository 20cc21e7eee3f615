"""The tether: proof, just before the commit, that the local transaction is still the one that was begun.

"A transaction is open" is not enough. The user's code, a driver or the database may have ended the first one in its
middle (a commit or rollback, DDL, a deadlock whose error was swallowed), and another one is open now, which holds only
the rest. So the first statement of the transaction leaves something that is gone with it, whatever ended it.
"""

from __future__ import annotations

from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import TransactionLost
from tallystick.barrier.faults import Aborted, NoSavepoint
from tallystick.barrier.statement import Steps, operation


@operation
def tie(sql: Dialect, token: str) -> Steps[None]:
    """Mark the transaction that is open, or that begins with this statement."""
    yield sql.tie(token)


@operation
def require_tied(sql: Dialect, token: str) -> Steps[None]:
    """Raise `TransactionLost` unless the transaction is the one that `tie` marked. To be asked once."""
    try:
        untied = yield sql.untie(token)
    except NoSavepoint:
        raise _lost() from None
    except Aborted:
        raise TransactionLost(
            "the local transaction was aborted by an earlier error, which was ignored", rolled_back=True
        ) from None
    if not sql.is_tied(token, untied):
        raise _lost()


def _lost() -> TransactionLost:
    return TransactionLost(
        "the local transaction that was begun here has been ended before its commit: by a commit or rollback in "
        "between (of a session, of `with conn:`, of another block), by a statement that commits by itself, or by the "
        "database after an error that was ignored. Whatever ended it has committed or undone what came before it; what "
        "came after it is undone, unless the connection is in autocommit mode",
        rolled_back=False,
    )
