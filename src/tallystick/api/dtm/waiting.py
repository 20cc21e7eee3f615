"""`wait_result`: what one pass over the branches came to, told so that the caller knows which one and why."""

from __future__ import annotations

from tallystick.api.dtm.errors import DtmError, DtmFailure, DtmRefusal
from tallystick.api.dtm.translate import shown_url
from tallystick.core.calls import CallsView, CallView

LONGEST_SECONDS = 300.0
SPARE_SECONDS = 2.0  # beyond the calls' own time: for a broker that is busy
RETRIED = "the transaction stays submitted and its branches are retried until they succeed"


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
