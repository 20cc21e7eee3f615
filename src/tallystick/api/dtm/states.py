"""What dtm calls the state of a transaction, and what it says of one pass over the branches (`wait_result`)."""

from __future__ import annotations

from typing import Literal

from tallystick.api.dtm.errors import DtmError, DtmFailure, DtmRefusal
from tallystick.api.dtm.translate import shown_url
from tallystick.broker.door import Whole
from tallystick.core.calls import CallsView, CallView, first_pass_over

Status = Literal["prepared", "submitted", "succeed", "failed"]
STATUSES: tuple[Status, ...] = ("prepared", "submitted", "succeed", "failed")
LONGEST_SECONDS = 300.0
# How often a wait reads whether a host has been given up: soon at first, because it may be down already.
FIRST_LOOK_SECONDS, LOOK_SECONDS = 0.1, 0.5
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


def pass_over(view: CallsView) -> bool:
    """Whether one pass has ended. A call that waits for a host that does not answer ends it: when the host will be
    back is not known."""
    if view.state not in ("waiting", "held") or first_pass_over(view):
        return True
    begun = view.calls if view.concurrent else [next(call for call in view.calls if call.state != "done")]
    return all(call.attempts or call.host_down or call.state not in ("waiting", "held") for call in begun)


def judge(view: CallsView) -> None:
    """Nothing if every branch succeeded; otherwise what dtm answers, with the first branch that did not."""
    undone = next((call for call in view.calls if call.state != "done"), None)
    if undone is not None:
        raise _refusal(undone)


def _refusal(call: CallView) -> DtmRefusal:
    where = f"branch {call.branch} ({shown_url(call.url)})"
    if not call.attempts:
        why = ", because its host does not answer" if call.host_down else ""
        return DtmFailure(f"wait result not return success: {where} was not called yet{why}; {RETRIED}. FAILURE")
    if call.last_outcome == "failure":
        return DtmFailure(f"{where}: {call.last_error}; a msg has no way back: {RETRIED}. FAILURE")
    if call.last_outcome == "ongoing":
        return DtmFailure(f"wait result not return success: {where} answered ONGOING; {RETRIED}. FAILURE")
    return DtmError(f"{where}: {call.last_error}; {RETRIED}")
