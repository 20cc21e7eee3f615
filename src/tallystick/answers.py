"""The types of a broker's JSON answers, by request.

A link checks every answer here, so its callers may rely on the keys. A reverse proxy or another service at the address
may answer 200 with any JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from tallystick.core.calls import CallPage, CallsView, CallTopicView, HostView
from tallystick.core.token_records import MadeToken, TokenView
from tallystick.core.wire import (
    AuditPage,
    BatchResponse,
    BrokerInfo,
    CallerView,
    CheckPollResponse,
    ClusterView,
    GroupView,
    LedgerView,
    Split,
    TopicView,
    TransactionPage,
    TransactionView,
)

ANY = "*"
"""Stands for a part of a path that differs by request."""


class _Topics(Struct):
    topics: list[TopicView]
    position: int


class _Offsets(Struct):
    topic: str
    offsets: list[int]


class _Messages(Struct):
    start: int
    next: int
    end: int
    messages: list[dict[str, Any]]
    store: str


class _Groups(Struct):
    groups: list[GroupView]


class _Deliveries(Struct):
    deliveries: list[dict[str, Any]]
    store: str


class _Stale(Struct):
    stale: list[str]


class _Hosts(Struct):
    hosts: list[HostView]


class _CallTopics(Struct):
    topics: list[CallTopicView]


class _Splits(Struct):
    splits: list[Split]


class _Ledger(Struct):
    apps: list[LedgerView]


class _Batch(Struct):
    app: str
    version: int
    last: int
    duplicate: bool
    gid: str | None
    messages: int | None


class _Part(Struct):
    part: str
    messages: int
    duplicate: bool


class _Sent(Struct):
    duplicate: bool
    positions: list[dict[str, Any]]


class _Tokens(Struct):
    tokens: list[TokenView]


class ReadyAnswer(Struct):
    status: str
    reason: str | None = None


ANSWERS: dict[tuple[str, ...], Any] = {
    ("POST", "batch"): BatchResponse,
    ("GET", "info"): BrokerInfo,
    ("GET", "cluster"): ClusterView,
    ("GET", "whoami"): CallerView,
    ("POST", "transactions"): TransactionView,
    ("GET", "transactions"): TransactionPage,
    ("GET", "transactions", ANY): TransactionView,
    ("POST", "transactions", ANY, "commit"): TransactionView,
    ("POST", "transactions", ANY, "rollback"): TransactionView,
    ("POST", "transactions", ANY, "resume"): TransactionView,
    ("POST", "transactions", ANY, "hurry"): TransactionView,
    ("GET", "transactions", ANY, "calls"): CallsView,
    ("POST", "transactions", ANY, "calls", "resume"): CallsView,
    ("POST", "transactions", ANY, "calls", "stop"): CallsView,
    ("GET", "calls"): CallPage,
    ("GET", "call-hosts"): _Hosts,
    ("GET", "call-topics"): _CallTopics,
    ("GET", "call-topics", ANY): CallTopicView,
    ("PUT", "call-topics", ANY, "subscribers"): CallTopicView,
    ("POST", "parts", ANY): _Part,
    ("POST", "messages"): _Sent,
    ("GET", "topics"): _Topics,
    ("GET", "topics", ANY): TopicView,
    ("PUT", "topics", ANY): TopicView,
    ("GET", "topics", ANY, "offsets"): _Offsets,
    ("POST", "topics", ANY, "trim"): TopicView,
    ("GET", "topics", ANY, "queues", ANY, "messages"): _Messages,
    ("GET", "groups"): _Groups,
    ("GET", "groups", ANY): _Groups,
    ("POST", "groups", ANY, "receive"): _Deliveries,
    ("POST", "groups", ANY, "ack"): _Stale,
    ("POST", "groups", ANY, "nack"): _Stale,
    ("POST", "groups", ANY, "renew"): _Stale,
    ("GET", "groups", ANY, "offsets"): GroupView,
    ("PUT", "groups", ANY, "offsets"): _Stale,
    ("POST", "groups", ANY, "reset"): GroupView,
    ("POST", "checks", "poll"): CheckPollResponse,
    ("POST", "checks", "answers"): _Stale,
    ("GET", "tables", ANY, "splits"): _Splits,
    ("GET", "ledger"): _Ledger,
    ("GET", "ledger", ANY): LedgerView,
    ("POST", "ledger", ANY, ANY): _Batch,
    ("POST", "tokens"): MadeToken,
    ("GET", "tokens"): _Tokens,
    ("GET", "audit"): AuditPage,
}


def as_answer(method: str, path: tuple[str, ...], decoded: Any) -> Any:
    """Decoded JSON as the answer of a broker. Fields that an older broker does not send get their defaults.

    Raises:
        msgspec.ValidationError: It has not the type of such an answer.
    """
    typed = msgspec.convert(decoded, _type_of((method, *path)))
    if isinstance(typed, Struct) and not typed.__struct_config__.omit_defaults:
        for name in typed.__struct_fields__:
            if name not in decoded:
                decoded[name] = msgspec.to_builtins(getattr(typed, name))
    return decoded


def has_type(decoded: Any, kind: Any) -> bool:
    try:
        msgspec.convert(decoded, kind)
    except msgspec.ValidationError:
        return False
    return True


def _type_of(request: tuple[str, ...]) -> Any:
    """None for DELETE, which has no answer; any object for a request that is not in the table."""
    if request[0] == "DELETE":
        return None
    for known, kind in ANSWERS.items():
        if len(known) == len(request) and all(word in (ANY, said) for word, said in zip(known, request, strict=True)):
            return kind
    return dict[str, Any]
