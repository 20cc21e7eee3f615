"""What can go wrong between Tallystick and the service's own database."""

from __future__ import annotations

from tallystick.core.errors import TallystickError
from tallystick.core.ops import Outcome


class BarrierError(TallystickError):
    """The service's own database did not do what the barrier needs."""

    code = "barrier"


class AlreadyDecided(BarrierError):
    """The gid has an outcome already, so the local transaction must not commit.

    `outcome` is `rolled_back` when a check-back came first, `committed` when the gid was used before, and
    `None` when the database shows that the gid is taken but not by whom.
    """

    code = "already_decided"

    def __init__(self, gid: str, outcome: Outcome | None) -> None:
        self.gid = gid
        self.outcome = outcome
        if outcome == "rolled_back":
            said = "must not commit: it was rolled back under this gid, by a check-back or with an attempt that failed"
        elif outcome == "committed":
            said = "is committed already, by an earlier attempt under this gid; nothing of this one remains"
        else:
            said = "must not commit: the gid was used before; every transaction needs a new one"
        super().__init__(f"transaction {gid} {said}", field="gid")


class TablesMissing(BarrierError):
    """A Tallystick table is missing from the database; create it with tallystick.barrier.create_tables(conn)."""

    code = "tables_missing"


class DatabaseReadOnly(BarrierError):
    """The database refuses writes; the barrier needs a connection that can write (the primary, not a replica)."""

    code = "database_read_only"


class TransactionOpen(BarrierError):
    """This needs a connection with no transaction open; commit or roll back first, or use a new connection."""

    code = "transaction_open"


class TransactionLost(BarrierError):
    """The local transaction is no longer open, so there is nothing left to commit.

    `rolled_back` is true when the database has surely undone it (an earlier error aborted it), and false when it
    was ended by somebody else and may have committed.
    """

    code = "transaction_lost"

    def __init__(self, detail: str, *, rolled_back: bool) -> None:
        self.rolled_back = rolled_back
        super().__init__(detail)


class WrongDatabase(BarrierError):
    """The connection leads to another barrier table than the one that holds the outcome."""

    code = "wrong_database"


class UnsupportedConnection(BarrierError):
    """This database connection cannot be used here: its kind, its mode or its state is not one that works."""

    code = "unsupported_connection"


class InvalidTableName(BarrierError):
    """A table name is letters, digits and underscores, with at most one schema before a dot."""

    code = "invalid_table_name"
