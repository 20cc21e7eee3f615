"""What dtm calls the state of a transaction."""

from __future__ import annotations

from typing import Literal

from tallystick.broker.door import Whole

Status = Literal["prepared", "submitted", "succeed", "failed"]
STATUSES: tuple[Status, ...] = ("prepared", "submitted", "succeed", "failed")


def status_of(found: Whole) -> Status:
    if found.transaction.state in ("prepared", "parked"):
        return "prepared"
    if found.transaction.state == "rolled_back" or (found.calls and found.calls.state == "stopped"):
        return "failed"
    return "succeed" if found.calls is None or found.calls.state == "done" else "submitted"


def finished(found: Whole) -> bool:
    return status_of(found) in ("succeed", "failed")
