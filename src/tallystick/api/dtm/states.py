"""What dtm calls the state of a transaction, and what it says of one pass over the branches (`wait_result`)."""

from __future__ import annotations

from typing import Literal

from tallystick.api.dtm.errors import DtmError, DtmFailure, DtmRefusal
from tallystick.api.dtm.translate import shown_url
from tallystick.broker.door import Whole
from tallystick.core.calls import CallsView, CallView

Status = Literal["prepared", "submitted", "succeed", "failed"]
STATUSES: tuple[Status, ...] = ("prepared", "submitted", "succeed", "failed")
LONGEST_SECONDS = 300.0
SPARE_SECONDS = 2.0  # beyond the calls' own time: for a broker that is busy
RETRIED = "the transaction stays submitted and its branches are retried until they succeed"


def status_of(found: Whole) -> Status:
    if found.transaction.state in ("prepared", "parked"):
        return "prepared"
    if found.transaction.state == "rolled_back" or (found.calls and found.calls.state == "stopped"):
        return "failed"
    return "succeed" if found.calls is None or found.calls.state == "done" else "submitted"


def finished(found: Whole) -> bool:
    return status_of(found) in ("succeed", "failed")


def patience(view: CallsView, timeout_ms: int) -> float:
    """How long one pass may take: each call its time, one after the other or all at once."""
    return min(LONGEST_SECONDS, SPARE_SECONDS + timeout_ms / 1000 * (1 if view.concurrent else len(view.calls)))


def judge(view: CallsView) -> None:
    """Nothing if every branch succeeded; otherwise what dtm answers, with the first branch that did not."""
    undone = next((call for call in view.calls if call.state != "done"), None)
    if undone is not None:
        raise _refusal(undone)


def _refusal(call: CallView) -> DtmRefusal:
    where = f"branch {call.branch} ({shown_url(call.url)})"
    if not call.attempts:
        return DtmFailure(f"wait result not return success: {where} was not called yet; {RETRIED}. FAILURE")
    if call.last_outcome == "failure":
        return DtmFailure(f"{where}: {call.last_error}; a msg has no way back: {RETRIED}. FAILURE")
    if call.last_outcome == "ongoing":
        return DtmFailure(f"wait result not return success: {where} answered ONGOING; {RETRIED}. FAILURE")
    return DtmError(f"{where}: {call.last_error}; {RETRIED}")
