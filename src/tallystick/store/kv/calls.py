"""Calls: lined up when their transaction commits, claimed when due, and what follows each try.

A call has a key in exactly one place: in its host's line (`D`), among those under lease (`i`), among the parked
(`X`), or none (done, stopped, or behind another one of its transaction). `x` holds where that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallResult, CallSpec
from tallystick.core.dtm_mark import has_dtm_calls
from tallystick.core.errors import Conflict, NotFound
from tallystick.core.ops import OpResult, Outcome
from tallystick.store.kv import keys
from tallystick.store.kv.batch import NEVER, Batch, Look, encode
from tallystick.store.kv.call_records import CallProgress, CallsRecord, CallsState
from tallystick.store.kv.channels import channel_for
from tallystick.store.protocol import (
    CallClaim,
    ClaimCalls,
    ClaimedCalls,
    FailedCall,
    FinishCalls,
    Progress,
    RequeueCalls,
    ResumeCalls,
    StopCalls,
)

# Why a call is in line; kept with its key, so that a scan of the line need not read more.
FIRST, RETRY, UNREACHED = b"", b"r", b"u"
# A claim of calls whose host is back looks at this many times its limit: it must not read a long line of others.
EARLY_EXAMINED = 20


# --- the outcome -------------------------------------------------------------------------------------------------


def settle(
    batch: Batch, gid: str, spec: CallSpec, check_target: str, outcome: Outcome, created_at: int, delay_ms: int
) -> None:
    """Their transaction has an outcome: line them up, or keep only what they would have been."""
    retry_ms = spec.retry_ms or batch.settings.calls.first_ms
    limit = spec.max_attempts or batch.settings.max_call_attempts
    state = CallsState(created_at, spec.concurrent, retry_ms, limit, [])
    if outcome == "committed":
        for call in spec.calls:
            channel = channel_for(batch, "call", call.url, "").id
            delay = max(call.delay_ms, delay_ms)
            # Without a delay any time will do: a clock that was set back since must not hold the call up.
            state.calls.append(CallProgress(channel, next_at=created_at + delay if delay else 0))
        batch.counters.calls_waiting += len(spec.calls)
        _line_up(batch, gid, state)
    else:
        state.finished_at = batch.now
        bare = [msgspec.structs.replace(call, body=b"") for call in spec.calls]
        spec = msgspec.structs.replace(spec, calls=bare)
    batch.put("tx", keys.CALLS.key(gid), encode(CallsRecord(spec, check_target)))
    batch.keep_calls_state(gid, state)


def _line_up(batch: Batch, gid: str, state: CallsState) -> None:
    """Bring those into line whose turn it is: all of them, or the first that is not done."""
    for index, progress in enumerate(state.calls):
        if progress.state == "behind":
            _put_in_line(batch, gid, index, progress, max(batch.now, progress.next_at), FIRST)
        if progress.state != "done" and not state.concurrent:
            return


def _put_in_line(batch: Batch, gid: str, index: int, progress: CallProgress, at: int, why: bytes) -> None:
    progress.state, progress.next_at = "waiting", at
    batch.lower_mark(progress.channel, at)
    batch.put("index", keys.DUE_CALL.key(progress.channel, at, gid, index), why)
    batch.called.add(progress.channel)


def _take_out(batch: Batch, gid: str, index: int, progress: CallProgress) -> None:
    """Remove the call's key, wherever it is, and count it neither as waiting nor as parked."""
    if progress.state == "waiting":
        batch.delete("index", keys.DUE_CALL.key(progress.channel, progress.next_at, gid, index))
    elif progress.state == "leased":
        batch.delete("index", keys.LEASED_CALL.key(progress.next_at, gid, index))
    elif progress.state == "parked":
        batch.delete("index", keys.PARKED_CALL.key(gid, index))
        batch.counters.calls_parked -= 1
    if progress.state in ("waiting", "leased", "behind"):
        batch.counters.calls_waiting -= 1


# --- claiming ----------------------------------------------------------------------------------------------------


def claim(batch: Batch, op: ClaimCalls) -> ClaimedCalls:
    requeue(batch, RequeueCalls(op.limit))
    claimed = ClaimedCalls([], {})
    room = op.max_bytes
    for channel in op.channels:
        before = len(claimed.claims)
        claimed.next_due[channel] = _claim_channel(batch, channel, op, claimed.claims, room)
        room -= sum(len(one.call.body) for one in claimed.claims[before:])
    return claimed


def _claim_channel(batch: Batch, channel: int, op: ClaimCalls, claims: list[CallClaim], room: int) -> int | None:
    """Claim what is due in one channel; tells when the next one is due."""
    begin = batch.catalog.line_begin(channel)
    if begin == NEVER or (begin > batch.now and not op.early):  # known without a look
        return None if begin == NEVER else begin
    next_due: int | None = None
    taken = 0
    line = batch.scan("index", *keys.DUE_CALL.since(channel, begin))

    def looks(key: bytes) -> Iterable[Look]:
        gid, _ = keys.DUE_CALL.call(key)
        due = op.early or keys.DUE_CALL.at(key) <= batch.now
        return (("index", keys.CALLS_STATE.key(gid)), ("tx", keys.CALLS.key(gid))) if due else ()

    for examined, (key, why) in enumerate(batch.foreseeing(line, looks)):
        at = keys.DUE_CALL.at(key)
        full = taken >= op.limit or room <= 0 or examined > EARLY_EXAMINED * op.limit
        if full or (at > batch.now and not op.early):
            next_due = at if next_due is None else next_due
            break
        if at > batch.now and why != UNREACHED:
            next_due = at if next_due is None else next_due
            continue
        made = _claim_one(batch, key, at, op.lease_ms)
        if made is not None:
            claims.append(made)
            taken += 1
            room -= len(made.call.body)
    batch.catalog.line_low[channel] = NEVER if next_due is None else next_due
    batch.raise_mark(channel, batch.now if next_due is None else min(next_due, batch.now), keep=taken > 0)
    return next_due


def _claim_one(batch: Batch, key: bytes, at: int, lease_ms: int) -> CallClaim | None:
    gid, index = keys.DUE_CALL.call(key)
    state = batch.calls_state(gid)
    batch.delete("index", key)
    if state is None:
        return None
    progress = state.calls[index]
    progress.state, progress.next_at = "leased", batch.now + lease_ms
    batch.put("index", keys.LEASED_CALL.key(progress.next_at, gid, index), b"")
    batch.catalog.first_lease_end = min(batch.catalog.first_lease_end, progress.next_at)
    batch.keep_calls_state(gid, state)
    spec = batch.calls_record(gid).spec
    dtm = has_dtm_calls(spec.remark)
    call = spec.calls[index]
    return CallClaim(progress.channel, gid, index, call, progress.attempts, state.created_at, dtm, state.retry_ms)


def requeue(batch: Batch, op: RequeueCalls) -> Progress:
    if batch.now < batch.catalog.first_lease_end and not op.all:
        return Progress(0)
    done, first = 0, NEVER
    leased = batch.foreseeing(
        islice(batch.scan("index", *keys.LEASED_CALL.since(batch.catalog.first_lease_end)), op.limit + 1),
        lambda key: [("index", keys.CALLS_STATE.key(keys.LEASED_CALL.call(key)[0]))],
    )
    for key, _ in leased:
        until = keys.LEASED_CALL.at(key)
        if done >= op.limit or (until > batch.now and not op.all):
            first = until
            break
        gid, index = keys.LEASED_CALL.call(key)
        state = batch.calls_state(gid)
        batch.delete("index", key)
        if state is not None:
            _put_in_line(batch, gid, index, state.calls[index], batch.now, UNREACHED)
            batch.keep_calls_state(gid, state)
        done += 1
    batch.catalog.first_lease_end = first
    return Progress(done, more=done >= op.limit)


# --- what came of it ---------------------------------------------------------------------------------------------


def finish(batch: Batch, op: FinishCalls) -> None:
    for result in op.results:
        state = batch.calls_state(result.gid)
        if state is None or result.index >= len(state.calls):
            continue  # forgotten since: what it answered counts for nobody
        progress = state.calls[result.index]
        if progress.state == "done":
            continue
        if result.outcome == "success":
            _succeed(batch, result, state, progress)
        elif progress.state == "leased":
            _try_again(batch, result, state, progress)
        else:
            continue  # stopped, or its lease was over: somebody else has it now
        batch.keep_calls_state(result.gid, state)


def _succeed(batch: Batch, result: CallResult, state: CallsState, progress: CallProgress) -> None:
    """Done, whatever it was taken for meanwhile: it must not be made again."""
    _take_out(batch, result.gid, result.index, progress)
    progress.state, progress.next_at, progress.finished_at = "done", 0, batch.now
    progress.attempts += 1
    progress.last_error, progress.last_outcome = "", "success"
    if not state.concurrent:
        _line_up(batch, result.gid, state)
    if all(one.state in ("done", "stopped") for one in state.calls):
        state.finished_at = batch.now


def _try_again(batch: Batch, result: CallResult, state: CallsState, progress: CallProgress) -> None:
    gid, index = result.gid, result.index
    batch.delete("index", keys.LEASED_CALL.key(progress.next_at, gid, index))
    if result.outcome == "released":
        _put_in_line(batch, gid, index, progress, batch.now, UNREACHED)
        return
    progress.attempts += 1
    progress.last_error, progress.last_outcome = result.error, result.outcome
    if result.outcome != "ongoing":
        progress.failures += 1
    if progress.attempts >= state.max_attempts:
        _park(batch, gid, index, progress)
        return
    wait = state.retry_ms
    if result.outcome != "ongoing":
        cap = max(batch.settings.calls.cap_ms, state.retry_ms)
        wait = Backoff(state.retry_ms, cap, batch.settings.calls.jitter).wait_ms(progress.failures)
        if progress.failures == batch.settings.call_alert_after:
            _tell(batch, "call_failing", gid, index, progress)
    why = UNREACHED if result.outcome == "unreachable" and not result.own else RETRY
    _put_in_line(batch, gid, index, progress, batch.now + wait, why)


def _park(batch: Batch, gid: str, index: int, progress: CallProgress) -> None:
    progress.state, progress.next_at = "parked", 0
    batch.put("index", keys.PARKED_CALL.key(gid, index), b"")
    batch.counters.calls_waiting -= 1
    batch.counters.calls_parked += 1
    _tell(batch, "call_parked", gid, index, progress)


def _tell(batch: Batch, kind: str, gid: str, index: int, progress: CallProgress) -> None:
    call = batch.calls_record(gid).spec.calls[index]
    said = f"call {call.branch} to {call.url} has failed, try {progress.attempts}: {progress.last_error}"
    batch.event(kind, gid, said, FailedCall(call.url, progress.last_error, progress.failures))


# --- an operator's word ------------------------------------------------------------------------------------------


def _state_for(batch: Batch, gid: str) -> CallsState:
    state = batch.calls_state(gid)
    if state is None or not state.calls:
        raise NotFound(f"transaction {gid} has no calls that are under way", field="gid")
    return state


def resume(batch: Batch, op: ResumeCalls) -> OpResult | None:
    state = _state_for(batch, op.gid)
    parked = [index for index, progress in enumerate(state.calls) if progress.state == "parked"]
    if not parked:
        return OpResult(duplicate=True)
    for index in parked:
        progress = state.calls[index]
        _take_out(batch, op.gid, index, progress)
        progress.attempts = progress.failures = 0
        batch.counters.calls_waiting += 1
        _put_in_line(batch, op.gid, index, progress, batch.now, RETRY)
    batch.keep_calls_state(op.gid, state)
    return None


def stop(batch: Batch, op: StopCalls) -> OpResult | None:
    state = _state_for(batch, op.gid)
    left = [index for index, progress in enumerate(state.calls) if progress.state not in ("done", "stopped")]
    if not left and any(progress.state == "stopped" for progress in state.calls):
        return OpResult(duplicate=True)
    if not left:
        raise Conflict(f"the calls of transaction {op.gid} are all done; there is nothing to stop")
    for index in left:
        progress = state.calls[index]
        _take_out(batch, op.gid, index, progress)
        progress.state, progress.next_at, progress.finished_at = "stopped", 0, batch.now
    state.finished_at = batch.now
    batch.keep_calls_state(op.gid, state)
    return None


def hurry(batch: Batch, gid: str, state: CallsState) -> int:
    """Tries that wait after one that failed are due now; tells how many. What was delayed on purpose stays so."""
    moved = 0
    for index, progress in enumerate(state.calls):
        if progress.state == "waiting" and progress.attempts and progress.next_at > batch.now:
            batch.delete("index", keys.DUE_CALL.key(progress.channel, progress.next_at, gid, index))
            _put_in_line(batch, gid, index, progress, batch.now, RETRY)
            moved += 1
    if moved:
        batch.keep_calls_state(gid, state)
    return moved
