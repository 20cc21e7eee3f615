"""Check-backs: claiming what is due, and what follows an answer or its absence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from tallystick.core.access import EVERY, covers
from tallystick.core.dtm_mark import has_dtm_check
from tallystick.core.errors import Conflict, Forbidden, NotFound
from tallystick.core.message import KeptMessage
from tallystick.core.ops import Answer, AnswerChecks, OpResult, Outcome
from tallystick.core.transaction import CheckState, Prepared, Resolved, Undecided, after_unanswered
from tallystick.core.wire import CheckRequest
from tallystick.store.kv import keys
from tallystick.store.kv.batch import NEVER, Batch, Entries, Look, decode_pending, decode_record, encode
from tallystick.store.kv.transactions import Decided, is_plain, resolve, resolve_plain
from tallystick.store.protocol import STILL_UNKNOWN, Claim, ClaimChecks, Claimed, FailChecks, ParkOld, Progress, Resume

# Transactions of an answer that are in memory at a time: each may hold a megabyte of messages.
READ_AT_ONCE = 128
_SHOWN = 5  # gids that a refusal names


def claim(batch: Batch, op: ClaimChecks) -> Claimed:
    claimed = Claimed([], {})
    for channel in op.channels:
        claimed.next_due[channel] = _claim_channel(batch, channel, op, claimed.claims)
    return claimed


def _claim_channel(batch: Batch, channel: int, op: ClaimChecks, claims: list[Claim]) -> int | None:
    """Claim what is due in one channel; tells when the next one is due."""
    begin = batch.catalog.line_begin(channel)
    if begin > batch.now:  # known without a look
        next_due = None if begin == NEVER else begin
        if next_due is not None:
            _claim_stranded(batch, channel, op, claims, op.limit)
        return next_due
    # One entry past the limit is read as well: it tells when to come back.
    line = islice(batch.scan("index", *keys.DUE.since(channel, begin)), op.limit + 1)
    found = _foreseen(batch, line, batch.now)
    next_due = None
    before = len(claims)
    for taken, (key, _) in enumerate(found):
        at, gid = keys.DUE.at(key), keys.DUE.name(key)
        if at > batch.now or taken >= op.limit:
            next_due = at
            break
        record = batch.transaction(gid)
        if isinstance(record, Prepared):
            claims.append(_claim_one(batch, gid, record, at, op.lease_ms))
        else:
            batch.delete("index", key)
    scanned_to = batch.now if next_due is None else min(next_due, batch.now)
    if next_due is not None:  # else there is nothing more in line, at any time
        _claim_stranded(batch, channel, op, claims, op.limit - (len(claims) - before))
    first = NEVER if next_due is None else next_due
    batch.catalog.line_low[channel] = first if len(claims) == before else min(first, batch.now + op.lease_ms)
    batch.raise_mark(channel, scanned_to, keep=len(claims) > before)
    return next_due


def _foreseen(batch: Batch, found: Entries, until: int | None = None) -> Entries:
    """Entries of the line whose transactions are about to be read; those that are due later are not."""

    def looks(key: bytes) -> Iterable[Look]:
        due = until is None or keys.DUE.at(key) <= until
        return batch.looks_at(keys.DUE.name(key), checked=True) if due else ()

    return batch.foreseeing(found, looks)


def _claim_stranded(batch: Batch, channel: int, op: ClaimChecks, claims: list[Claim], room: int) -> None:
    """Claim what is in line for a time further ahead than any check is put: it dates from before the clock was set
    back, and would wait until the clock has come round again."""
    longest = max(batch.catalog.mark(channel).longest, batch.settings.checks.backoff.cap_ms, op.lease_ms)
    found = batch.scan("index", *keys.DUE.since(channel, batch.now + longest + 1))
    for key, _ in list(_foreseen(batch, islice(found, max(0, room)))):
        at, gid = keys.DUE.at(key), keys.DUE.name(key)
        record = batch.transaction(gid)
        if isinstance(record, Prepared):
            claims.append(_claim_one(batch, gid, record, at, op.lease_ms))


def _claim_one(batch: Batch, gid: str, record: Prepared, due_at: int, lease_ms: int) -> Claim:
    state = batch.check_state(gid, record) or CheckState(0, due_at)
    batch.delete("index", keys.DUE.key(record.channel, due_at, gid))
    state.next_at = batch.now + lease_ms
    _store_state(batch, gid, record, state)
    batch.put("index", keys.AGED.key(record.created_at, gid), b"")
    request = CheckRequest(gid, record.source, state.checks, record.created_at)
    dtm = has_dtm_check(record)
    return Claim(
        record.channel,
        record.via,
        record.target,
        record.group,
        record.member,
        request,
        record.check_headers,
        record.check_timeout_ms,
        dtm,
        record.pushed.retry_ms if dtm and record.pushed else None,
    )


def _store_state(batch: Batch, gid: str, record: Undecided, state: CheckState, after: int = 0) -> None:
    batch.add_due(record.channel, state.next_at, gid, after)
    _keep_state(batch, gid, record, state)


def _keep_state(batch: Batch, gid: str, record: Undecided, state: CheckState) -> None:
    mark = batch.catalog.mark(record.channel)
    # From now on this transaction has a check state, and `Batch.check_state` must look for it.
    if record.first_check_at > mark.claimed:
        mark.claimed = record.first_check_at
        batch.put("index", keys.MARK.key(record.channel), encode(mark))
    batch.put("index", keys.CHECK.key(gid), encode(state))


def answer(batch: Batch, op: AnswerChecks, groups: tuple[str, ...] = EVERY) -> OpResult | None:
    """Take what is said of transactions of these producer groups, by patterns. What is said of others counts for
    nothing, and that is told."""
    foreign: list[str] = []
    answers = iter(op.answers.items())
    while some := list(islice(answers, READ_AT_ONCE)):
        stored = batch.get_many("tx", [keys.TRANSACTION.key(gid) for gid, _ in some])
        plain: list[Decided] = []
        others: list[tuple[str, Answer, Undecided | Resolved]] = []
        for (gid, said), value in zip(some, stored, strict=True):
            if value is None:
                continue
            # Only what becomes visible is decoded with its messages.
            record = decode_record(value) if said == "committed" else decode_pending(value)
            if not covers(groups, record.group):
                foreign.append(gid)
                continue
            if said == "unknown" or isinstance(record, Resolved) or not is_plain(batch, record):
                others.append((gid, said, record))
            else:
                plain.append((gid, record, said, _messages(record, said)))
        resolve_plain(batch, plain, "check")
        batch.read_ahead("index", [keys.CHECK.key(gid) for gid, _, record in others if isinstance(record, Undecided)])
        for gid, said, record in others:
            _answered(batch, op, gid, said, record)
    return _not_yours(foreign, len(op.answers)) if foreign else None


def _not_yours(foreign: Sequence[str], said: int) -> OpResult:
    shown = ", ".join(foreign[:_SHOWN]) + (", ..." if len(foreign) > _SHOWN else "")
    detail = f"answers: {len(foreign)} of {said} are for transactions of other groups, and were not taken: {shown}"
    return OpResult(Forbidden.code, detail, "answers")


def _answered(batch: Batch, op: AnswerChecks, gid: str, said: Answer, record: Undecided | Resolved) -> None:
    if isinstance(record, Resolved):
        if said not in ("unknown", record.outcome):
            batch.event("conflict", gid, f"{_who(op)} answered {said}, the transaction is {record.outcome}")
    elif said == "unknown":
        reason = op.reasons.get(gid, STILL_UNKNOWN)
        _unanswered(batch, gid, record, reason, permanent=False)
    else:
        resolve(batch, gid, record, said, "check", _messages(record, said))


def _messages(record: Undecided, outcome: Outcome) -> Sequence[KeptMessage]:
    """What becomes visible with this outcome."""
    if outcome == "rolled_back":
        return ()
    if not isinstance(record, Prepared):
        raise TypeError("a transaction that commits is to be read with its messages")
    return record.messages


def _who(op: AnswerChecks) -> str:
    named = [f"member {op.member}"] if op.member else []
    if op.group:
        named.append(f"group {op.group}")
    return " of ".join(named) or "the check"


def fail(batch: Batch, op: FailChecks) -> None:
    for gid, error in op.errors.items():
        record = batch.transaction(gid)
        if not isinstance(record, Prepared):
            continue
        if op.counted:
            _unanswered(batch, gid, record, error, op.permanent, op.retry_ms)
        else:
            state = _take_from_line(batch, gid, record)
            wait = batch.settings.checks.backoff.cap_ms if op.retry_ms is None else op.retry_ms
            if not state.parked:
                _store_state(batch, gid, record, CheckState(state.checks, batch.now + wait, error))


def _unanswered(
    batch: Batch, gid: str, record: Undecided, error: str, permanent: bool, retry_ms: int | None = None
) -> None:
    state = _take_from_line(batch, gid, record)
    if state.parked:
        return
    follows = after_unanswered(state, record, batch.now, batch.settings.checks.backoff, error, permanent)
    if isinstance(follows, CheckState):
        if retry_ms is not None:
            follows.next_at = batch.now + retry_ms
        _store_state(batch, gid, record, follows, retry_ms or 0)
    elif follows == "rollback":
        _store_state(batch, gid, record, CheckState(state.checks + 1, batch.now, error))
        resolve(batch, gid, record, "rolled_back", "exhausted", [])
        batch.event("exhausted", gid, f"rolled back after {state.checks + 1} checks: {error}")
    else:
        _park(batch, gid, record, CheckState(state.checks + 1, batch.now, error))


def _take_from_line(batch: Batch, gid: str, record: Undecided) -> CheckState:
    """Remove the transaction's due entry, wherever it is; its state if it was never claimed is a fresh one."""
    state = batch.check_state(gid, record) or CheckState(0, record.first_check_at)
    if not state.parked:
        batch.delete("index", keys.DUE.key(record.channel, state.next_at, gid))
    return state


def _park(batch: Batch, gid: str, record: Undecided, state: CheckState) -> None:
    state.parked = True
    batch.put("index", keys.PARKED.key(gid), b"")
    batch.put("index", keys.AGED.key(record.created_at, gid), b"")
    _keep_state(batch, gid, record, state)
    batch.counters.parked += 1
    batch.event("parked", gid, f"no outcome after {state.checks} checks: {state.last_error}")


def park_old(batch: Batch, op: ParkOld) -> Progress:
    oldest = batch.now - batch.settings.checks.max_age_ms
    done = 0
    for channel in op.channels:
        due = keys.DUE.between(channel, batch.catalog.mark(channel).low, max(0, oldest))
        for key, _ in list(_foreseen(batch, islice(batch.scan("index", *due), op.limit))):
            gid = keys.DUE.name(key)
            record = batch.transaction(gid)
            if isinstance(record, Prepared):
                state = _take_from_line(batch, gid, record)
                error = state.last_error or "nobody could be asked"
                _park(batch, gid, record, CheckState(state.checks, batch.now, error))
                done += 1
    return Progress(done, more=done >= op.limit)


def hurry(batch: Batch, gid: str, record: Prepared) -> bool:
    """The next check is due now; False if it is already, or if the transaction is parked."""
    state = batch.check_state(gid, record) or CheckState(0, record.first_check_at)
    if state.parked or state.next_at <= batch.now:
        return False
    state = _take_from_line(batch, gid, record)
    state.next_at = batch.now
    _store_state(batch, gid, record, state)
    return True


def resume(batch: Batch, op: Resume) -> OpResult | None:
    record = batch.transaction(op.gid)
    if record is None:
        raise NotFound(f"transaction {op.gid} is not known here", field="gid")
    if not isinstance(record, Prepared):
        raise Conflict(f"transaction {op.gid} is {record.outcome}; there is nothing to resume")
    state = batch.check_state(op.gid, record)
    if state is None or not state.parked:
        return OpResult(duplicate=True)
    batch.delete("index", keys.PARKED.key(op.gid))
    batch.counters.parked -= 1
    _store_state(batch, op.gid, record, CheckState(0, batch.now))
    return None
