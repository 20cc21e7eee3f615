"""Prepare, commit, roll back, send."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.core.calls import CallSpec
from tallystick.core.errors import InvalidRequest, NotFound
from tallystick.core.message import KeptMessage, dated
from tallystick.core.ops import Commit, DropParts, OpResult, Outcome, Position, Prepare, Rollback, Send
from tallystick.core.transaction import (
    Prepared,
    Resolved,
    Undecided,
    accept_outcome_again,
    accept_prepare_again,
)
from tallystick.store.kv import call_topics, calls, delayed, keys, parts, topics
from tallystick.store.kv.batch import Batch, encode
from tallystick.store.kv.channels import channel_for, check_room
from tallystick.store.kv.origins import outline
from tallystick.store.protocol import OperatorResolve

DUPLICATE = OpResult(duplicate=True)


def prepare(batch: Batch, op: Prepare) -> OpResult | None:
    existing = batch.transaction(op.gid)
    if existing is not None:
        accept_prepare_again(op.gid, existing, op)
        return DUPLICATE
    check, defaults = op.check, batch.settings.checks
    check_room(batch, check.via, check.target, op.group)
    # Refused now rather than at the commit, when the business change can no longer be taken back.
    pushed = call_topics.spec_of(batch, op.calls, op.call_options, op.remark)
    topics.require(batch, [message.topic for message in op.messages])
    after = defaults.after_ms if check.after_ms is None else check.after_ms
    channel = channel_for(batch, check.via, check.target, op.group)
    record = Prepared(
        op.group,
        op.member or "",
        channel.id,
        check.via,
        check.target,
        check.source,
        batch.now + after,
        check.max_checks or defaults.max_checks,
        check.on_exhausted or defaults.on_exhausted,
        batch.now,
        op.messages,
        pushed,
        check.headers,
        check.timeout_ms,
    )
    batch.put("tx", keys.TRANSACTION.key(op.gid), encode(record))
    batch.add_due(channel.id, record.first_check_at, op.gid, after, outline(batch, record))
    batch.catalog.recent.add(op.gid, record)
    batch.counters.pending += 1
    batch.prepared += 1
    return None


def commit(batch: Batch, op: Commit) -> OpResult | None:
    existing = batch.transaction(op.gid)
    if isinstance(existing, Resolved):
        accept_outcome_again(op.gid, existing, "committed")
        return DUPLICATE
    if existing is None and not op.parts:
        raise NotFound(
            f"transaction {op.gid} is not known here: never prepared, or resolved longer ago than the dedup retention",
            field="gid",
        )
    claimed = parts.claim(batch, op.parts) if op.parts else None
    messages: Sequence[KeptMessage] = existing.messages if existing else []
    resolve(batch, op.gid, existing, "committed", "producer", messages, claimed, delay_ms=op.delay_ms)
    return None


def rollback(batch: Batch, op: Rollback) -> OpResult | None:
    existing = batch.transaction(op.gid)
    if isinstance(existing, Resolved):
        accept_outcome_again(op.gid, existing, "rolled_back")
        return DUPLICATE
    parts.drop(batch, DropParts(op.parts))
    # An unknown gid is resolved as well: the prepare may still be on its way, and must find a tombstone.
    resolve(batch, op.gid, existing, "rolled_back", "producer", [])
    return None


def operator_resolve(batch: Batch, op: OperatorResolve) -> OpResult | None:
    existing = batch.transaction(op.gid)
    if existing is None:
        raise NotFound(f"transaction {op.gid} is not known here", field="gid")
    if isinstance(existing, Resolved):
        accept_outcome_again(op.gid, existing, op.outcome)
        return DUPLICATE
    resolve(batch, op.gid, existing, op.outcome, "operator", existing.messages)
    return None


def resolve(
    batch: Batch,
    gid: str,
    existing: Undecided | None,
    outcome: Outcome,
    by: str,
    messages: Sequence[KeptMessage],
    claimed: parts.Claimed | None = None,
    group: str = "",
    pushed: CallSpec | None = None,
    delay_ms: int = 0,
) -> list[Position]:
    """Assign the outcome. The only place where a transaction's messages become visible and its calls due."""
    checks = forget_pending(batch, gid, existing) if existing else 0
    if by == "check":
        checks += 1  # the one that brought the answer
    positions: list[Position] = []
    if outcome == "committed":
        positions = append(batch, gid, messages, existing.created_at if existing else batch.now)
        batch.committed += 1
    count = len(messages)
    if claimed is not None:
        count += parts.publish(batch, claimed, gid, first=len(messages))
    group, created = (existing.group, existing.created_at) if existing else (group, batch.now)
    pushed = existing.pushed if existing else pushed
    if pushed is not None and pushed.calls:
        calls.settle(batch, gid, pushed, existing.target if existing else "", outcome, created, delay_ms)
    batch.bury(gid, (outcome, group, created, batch.now, by, count, checks, len(pushed.calls) if pushed else 0))
    return positions


Decided = tuple[str, Undecided, Outcome, Sequence[KeptMessage]]  # gid, record, outcome, messages that become visible


def is_plain(batch: Batch, record: Undecided) -> bool:
    """Never claimed for a check, and without calls."""
    return record.pushed is None and not batch.maybe_claimed(record)


def resolve_plain(batch: Batch, decided: Sequence[Decided], by: str) -> None:
    """`resolve` for many of which nothing is to be looked up any more: most of a backlog."""
    index, now, forget, due = batch.changes.keys["index"], batch.now, batch.catalog.recent.drop, keys.DUE.key
    for gid, record, outcome, messages in decided:
        if outcome == "committed":
            append(batch, gid, messages, record.created_at)
            batch.committed += 1
        forget(gid)
        index[due(record.channel, record.first_check_at, gid)] = None
        batch.bury(gid, (outcome, record.group, record.created_at, now, by, len(messages), 1, 0))
    batch.counters.pending -= len(decided)


def forget_pending(batch: Batch, gid: str, record: Undecided) -> int:
    """Take a transaction out of the indexes of pending ones; tells how often it was checked."""
    batch.catalog.recent.drop(gid)
    batch.counters.pending -= 1
    state = batch.check_state(gid, record)
    if state is None:
        batch.delete("index", keys.DUE.key(record.channel, record.first_check_at, gid))
        return 0
    if state.parked:
        batch.counters.parked -= 1
        batch.delete("index", keys.PARKED.key(gid))
    else:
        batch.delete("index", keys.DUE.key(record.channel, state.next_at, gid))
    batch.delete("index", keys.CHECK.key(gid))
    batch.delete("index", keys.AGED.key(record.created_at, gid))
    return state.checks


def append(batch: Batch, gid: str, messages: Sequence[KeptMessage], since: int) -> list[Position]:
    """Make messages visible; their delays count from `since`."""
    return [delayed.append(batch, dated(message, since), gid, sequence) for sequence, message in enumerate(messages)]


def send(batch: Batch, op: Send) -> OpResult | None:
    if not op.messages and not op.calls:
        raise InvalidRequest("messages: at least one message or call is needed", field="messages")
    if op.calls and op.gid is None:
        raise InvalidRequest("gid: calls need one, by which their services know a repetition", field="gid")
    existing = None if op.gid is None else batch.transaction(op.gid)
    if isinstance(existing, Resolved):
        accept_outcome_again(op.gid or "", existing, "committed")
        return DUPLICATE
    if existing is not None:
        raise InvalidRequest(
            f"gid {op.gid} belongs to a prepared transaction; commit that instead of sending", field="gid"
        )
    pushed = call_topics.spec_of(batch, op.calls, op.call_options, op.remark)
    topics.require(batch, [message.topic for message in op.messages])
    if op.gid is None:
        return OpResult(positions=append(batch, "", op.messages, batch.now))
    return OpResult(positions=resolve(batch, op.gid, None, "committed", "sender", op.messages, pushed=pushed))
