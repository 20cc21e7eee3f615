"""What dtm calls the state of a transaction."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from tallystick.core.calls import CallsView
from tallystick.core.wire import TransactionView
from tallystick.store.protocol import Store

Status = Literal["prepared", "submitted", "succeed", "failed"]
STATUSES: tuple[Status, ...] = ("prepared", "submitted", "succeed", "failed")


class Known(Struct):
    """A transaction and, if it has some, its calls, as they were at one moment."""

    transaction: TransactionView
    calls: CallsView | None

    @property
    def status(self) -> Status:
        if self.transaction.state in ("prepared", "parked"):
            return "prepared"
        if self.transaction.state == "rolled_back" or (self.calls and self.calls.state == "stopped"):
            return "failed"
        return "succeed" if self.calls is None or self.calls.state == "done" else "submitted"

    @property
    def finished(self) -> bool:
        return self.status in ("succeed", "failed")


def known(store: Store, gid: str) -> Known | None:
    """To be run where the store may be looked at, so that both parts show the same moment."""
    transaction = store.transaction(gid)
    return None if transaction is None else Known(transaction, store.calls(gid))
