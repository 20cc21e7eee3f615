"""How a transaction may end: what every adapter does around its commit."""

from __future__ import annotations

from typing import Any

from tallystick.barrier.adapters.state import DriverState, begins_next, ended
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import TransactionLost
from tallystick.barrier.faults import driver_error


def not_committed(*, certain: bool) -> TransactionLost:
    return TransactionLost(
        "commit() returned, and a transaction is still open: it belongs to somebody else (an outer transaction), the "
        "driver does not commit in this mode"
        + (". Nothing is committed" if certain else ", or the server began the next one by itself (completion_type)"),
        rolled_back=certain,
    )


class Ending:
    """Refuses to commit what is gone, and judges a commit that failed."""

    def __init__(self, dialect: Dialect, state: DriverState) -> None:
        self._dialect = dialect
        self._state = state
        self.used = False  # whether a statement of ours is part of the transaction: it must be open at the commit
        self._asked = True
        self._was_open = False

    def begun(self, *, explicitly: bool) -> None:
        """A transaction was begun; `explicitly` if a statement was sent for it, so it must be open by now."""
        self.used = explicitly

    def before_hooks(self, raw: Any) -> None:
        """A commit begins that runs code of others first: until `before_commit` is called it fails for certain."""
        self._asked = False
        self._was_open = self._state.open(raw)

    def before_commit(self, raw: Any) -> None:
        """Raises `TransactionLost` if the transaction is aborted, or gone although something of ours was in it."""
        self._asked = True
        lost = self._state.lost(raw)
        if lost is None and self._was_open and not self._state.open(raw):
            lost = ended()
        if lost is not None and (self.used or lost.rolled_back):
            raise lost

    def after_commit(self, raw: Any) -> None:
        """Raises `TransactionLost` if the driver's commit() has not ended the transaction."""
        if self._state.open(raw) and not begins_next(raw):
            raise not_committed(certain=not self._state.chains)

    def failure_is_certain(self, error: BaseException) -> bool:
        """Whether a commit that raised `error` surely left nothing behind."""
        if isinstance(error, TransactionLost):
            return error.rolled_back
        if not isinstance(error, Exception):
            return False  # interrupted while the commit was under way: it may go on without us
        return not self._asked or self._dialect.commit_refused(driver_error(error))
