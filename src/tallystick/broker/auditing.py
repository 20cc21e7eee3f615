"""What an operator or an admin does, in the words of the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tallystick.broker.caller import Caller
from tallystick.core.ops import ClientOp
from tallystick.store.protocol import (
    Audited,
    BrokerOp,
    DeleteTopic,
    DropCallTopic,
    DropToken,
    ForgetApp,
    Guarded,
    Hurry,
    HurryAll,
    OperatorResolve,
    PutToken,
    PutTopic,
    ResetGroup,
    Resume,
    ResumeCalls,
    StopCalls,
    StoreOp,
    Subscribe,
    TrimTo,
    Unsubscribe,
)


def _put_topic(op: PutTopic) -> str:
    said = (("queues", op.queues), ("retention_ms", op.retention_ms))
    return " ".join([op.name, *(f"{name}={value}" for name, value in said if value is not None)])


def _trim(op: TrimTo) -> str:
    return f"{op.topic} before {_offsets(op.offsets)}"


def _reset(op: ResetGroup) -> str:
    if op.offsets is not None:
        return f"{op.group} on {op.topic} to {_offsets(op.offsets)}"
    return f"{op.group} on {op.topic} to {op.to if op.timestamp is None else f'time {op.timestamp}'}"


def _offsets(offsets: dict[int, int]) -> str:
    shown = ",".join(f"{queue}:{offset}" for queue, offset in list(offsets.items())[:16])
    return shown if len(offsets) <= 16 else f"{shown},... ({len(offsets)} queues)"


# What is written down: a word for it, and what it was done to.
_WORDS: dict[type, tuple[str, Callable[[Any], str]]] = {
    OperatorResolve: ("resolve", lambda op: f"{op.gid} {op.outcome}"),
    Resume: ("resume", lambda op: op.gid),
    Hurry: ("hurry", lambda op: op.gid),
    HurryAll: ("hurry", lambda op: f"all that wait for more than {op.after_ms} ms, {op.limit} at most"),
    ResumeCalls: ("resume_calls", lambda op: op.gid),
    StopCalls: ("stop_calls", lambda op: op.gid),
    Subscribe: ("subscribe", lambda op: f"{op.topic} {op.url}"),
    Unsubscribe: ("unsubscribe", lambda op: f"{op.topic} {op.url}"),
    DropCallTopic: ("drop_call_topic", lambda op: op.topic),
    PutTopic: ("put_topic", _put_topic),
    DeleteTopic: ("delete_topic", lambda op: op.name),
    TrimTo: ("trim", _trim),
    ResetGroup: ("reset_group", _reset),
    ForgetApp: ("forget_app", lambda op: op.app),
    PutToken: ("create_token", lambda op: op.record.name),
    DropToken: ("revoke_token", lambda op: op.name),
}
ACTIONS = frozenset(action for action, _ in _WORDS.values())


def audited(guarded: BrokerOp | ClientOp | Guarded, op: BrokerOp | ClientOp, caller: Caller) -> StoreOp:
    """The operation with who does it, from where, and what it is, if that is to be written down. `guarded` is `op` as
    it is to be carried out."""
    words = _WORDS.get(type(op))
    if words is None:
        return guarded
    action, subject = words
    who = caller.identity
    return Audited(guarded, who.name, who.kind, caller.source, action, subject(op))  # type: ignore[arg-type]
