"""Who asks, and what they may: one rule for each operation, and one for each kind of look.

The door asks before it does or shows anything. What is only known once the store has looked (whose transaction a gid
is) is asked with the operation itself (`guarded`), or of what was found (`sees_transactions_of`, `sees_topic`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tallystick.core.access import EVERY, OPEN_NAME, Identity, NamedKind, Permission
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import Forbidden
from tallystick.core.names import LONGEST_NAME, is_name
from tallystick.core.ops import (
    Ack,
    AnswerChecks,
    Commit,
    CommitBatch,
    CommitOffsets,
    DropParts,
    Nack,
    Prepare,
    PrepareColumns,
    PreparePart,
    Renew,
    Rollback,
    Send,
)
from tallystick.core.urls import TOPIC_SCHEME, url_parts
from tallystick.store.protocol import (
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
    Receive,
    ResetGroup,
    Resume,
    ResumeCalls,
    StopCalls,
    StoreOp,
    Subscribe,
    TrimTo,
    Unsubscribe,
)

OPEN = Identity(OPEN_NAME, "open", ())
MOST_KEPT = 1_000
_SEE_TRANSACTION: tuple[Permission, ...] = ("produce", "check-back", "read", "operate")
_SEE_CONSUMERS: tuple[Permission, ...] = ("consume", "read", "operate")
_SEE_APP: tuple[Permission, ...] = ("produce", "read", "operate")
_SEE_TOPIC: tuple[Permission, ...] = ("produce", "consume", "read", "operate", "admin")
_SEE_EVERYTHING: tuple[Permission, ...] = ("read", "operate", "admin")
_SEE_CALL_TOPIC: tuple[Permission, ...] = ("call", "read", "operate", "admin")


class Caller:
    """Somebody who asks. This one may do and see everything: access control is off."""

    sees_every_transaction = sees_every_row = sees_nobodys = True

    def __init__(self, identity: Identity = OPEN, source: str = "") -> None:
        self.identity, self.source = identity, source

    def need(
        self,
        *permissions: Permission,
        topic: str | None = None,
        group: str | None = None,
        host: tuple[str, int] | None = None,
    ) -> None:
        """Raises unless one of these permissions covers all that is named."""

    def may_do(self, ops: Sequence[StoreOp]) -> None:
        """Raises if one of these is not for this caller."""

    def may_see(self, what: str, *names: str) -> None:
        """Raises if this is not for this caller's eyes. Without names it is a list, or the broker itself."""

    def guarded(self, ops: Sequence[Any]) -> Sequence[Any]:
        """The operations as they are to be carried out for this caller."""
        return ops

    def sees_transactions_of(self, group: str) -> bool:
        """Whether the transactions of this producer group may be shown."""
        return True

    def sees_consumers(self, group: str, topic: str) -> bool:
        """Whether it may be shown how far this consumer group is on this topic."""
        return True

    def sees_app(self, app: str) -> bool:
        """Whether this application may be shown in the list of the ledger."""
        return True

    def sees_topic(self, topic: str) -> bool:
        """Whether this topic may be shown in a list."""
        return True

    def sees_call_topic(self, topic: str) -> bool:
        """Whether this call topic may be shown in a list."""
        return True

    def sees_row(self, topic: str | None, group: str | None) -> bool:
        """Whether a row of a table may be shown that has this topic and this group; None: it has no such column."""
        return True


ANYBODY = Caller()


class KnownCaller(Caller):
    """Somebody who may do what the grants say, and nothing else."""

    def __init__(self, identity: Identity, source: str = "") -> None:
        super().__init__(identity, source)
        # What was found to be allowed, so that it is not found again for each of many operations.
        self._allowed: set[tuple[Any, ...]] = set()
        self._done: set[Any] = set()
        self._guards = _guards_of(identity)
        self._produces = _produces_of(identity)
        self.sees_every_transaction = identity.groups_for(*_SEE_TRANSACTION) == EVERY
        self.sees_nobodys = identity.allows("produce")
        self.sees_every_row = identity.allows_every("read", "topics", "groups")

    def may_do(self, ops: Sequence[StoreOp]) -> None:
        done = self._done
        for op in ops:
            if type(op) in done:  # the sign of those that are all alike: commits come as often as anything
                continue
            alike = _ALIKE.get(type(op))
            sign = None if alike is None else alike(op)
            if sign not in done:
                self._judge(op, sign)

    def _judge(self, op: StoreOp, sign: Any) -> None:
        rule = _RULES.get(type(op))
        if rule is None:
            raise Forbidden(f"{type(op).__name__} is the broker's own, and nobody else's")
        rule(self, op)
        if len(self._done) >= MOST_KEPT:
            self._done.clear()
        if sign is not None:
            self._done.add(sign)

    def may_see(self, what: str, *names: str) -> None:
        _LOOKS[what](self, *names)

    def guarded(self, ops: Sequence[Any]) -> Sequence[Any]:
        if not self._guards and self._produces is None:
            return ops
        return [self._guarded(op) if type(op) in _MAY_BE_GUARDED else op for op in ops]

    def _guarded(self, op: Any) -> Any:
        groups = self._guards.get(type(op), EVERY)
        produces = self._produces
        if produces is not None and not (type(op) in _WITH_PARTS and getattr(op, "parts", True)):
            produces = None
        return op if groups == EVERY and produces is None else Guarded(op, groups, produces)

    def sees_transactions_of(self, group: str) -> bool:
        return self.sees_every_transaction or self._has(_SEE_TRANSACTION, None, group, None)

    def sees_consumers(self, group: str, topic: str) -> bool:
        return self._has(_SEE_CONSUMERS, topic, group, None)

    def sees_app(self, app: str) -> bool:
        return self._has(_SEE_APP, None, app, None)

    def sees_topic(self, topic: str) -> bool:
        return self._has(_SEE_TOPIC, topic, None, None)

    def sees_call_topic(self, topic: str) -> bool:
        return self._has(_SEE_CALL_TOPIC, topic, None, None)

    def sees_row(self, topic: str | None, group: str | None) -> bool:
        return self.sees_every_row or self._has(("read",), topic, group, None)

    def need(
        self,
        *permissions: Permission,
        topic: str | None = None,
        group: str | None = None,
        host: tuple[str, int] | None = None,
    ) -> None:
        if self._has(permissions, topic, group, host):
            return
        on = [f"{kind} {name!r}" for kind, name in (("topic", topic), ("group", group)) if name is not None]
        on += [] if host is None else [f"host {host[0]}:{host[1]}"]
        raise Forbidden(self._lacking(permissions, ", ".join(on)))

    def need_every(self, permissions: tuple[Permission, ...], *kinds: NamedKind) -> None:
        """Raises unless one of these permissions covers all there are of these kinds. A pattern that a name such as
        `*` would fit does not."""
        if not any(self.identity.allows_every(one, *kinds) for one in permissions):
            on = " and ".join(f"every {kind[:-1]}" for kind in kinds)
            raise Forbidden(self._lacking(permissions, on))

    def _lacking(self, permissions: tuple[Permission, ...], on: str) -> str:
        about = f" on {on}" if on else ""
        needed = " or ".join(f"`{one}`" for one in permissions)
        return f"{self.identity.name} needs the permission {needed}{about}; an admin can give it that"

    def _has(
        self, permissions: tuple[Permission, ...], topic: str | None, group: str | None, host: tuple[str, int] | None
    ) -> bool:
        asked = (permissions, topic, group, host)
        if asked in self._allowed:
            return True
        if not any(self.identity.allows(one, topic=topic, group=group, host=host) for one in permissions):
            return False
        if len(self._allowed) >= MOST_KEPT:  # names come from requests, and have no end
            self._allowed.clear()
        self._allowed.add(asked)
        return True


def nobody(source: str) -> KnownCaller:
    """Somebody who need not say who they are, for what is open to all."""
    return KnownCaller(Identity("nobody", "open", ()), source)


class Callers:
    """Those who have asked lately: what was found of one need not be found again with each request. Who somebody is, is
    not kept here, but asked for each time."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], KnownCaller] = {}

    def of(self, identity: Identity, source: str) -> KnownCaller:
        key = (id(identity), source)
        known = self._known.get(key)
        if known is not None and known.identity is identity:
            return known
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        made = self._known[key] = KnownCaller(identity, source)
        return made


# --- operations ----------------------------------------------------------------------------------------------------


def _produce(caller: KnownCaller, topics: Iterable[str], group: str | None = None) -> None:
    some = False
    for topic in dict.fromkeys(topics):
        some = True
        caller.need("produce", topic=topic, group=group)
    if not some:
        caller.need("produce", group=group)


def _calls(caller: KnownCaller, calls: Iterable[OutgoingCall]) -> None:
    for call in calls:
        if call.url.startswith(TOPIC_SCHEME):
            caller.need("call", topic=call.url[len(TOPIC_SCHEME) :])
        else:
            _call(caller, call.url)


def _call(caller: KnownCaller, url: str) -> None:
    try:
        parts = url_parts(url)
    except ValueError:
        return  # admission says what is wrong with it
    caller.need("call", host=(parts.host, parts.port))


def _prepare(caller: KnownCaller, op: Prepare) -> None:
    _produce(caller, (message.topic for message in op.messages), op.group)
    _calls(caller, op.calls)
    if op.check.via == "url":
        _call(caller, op.check.target)


def _send(caller: KnownCaller, op: Send) -> None:
    _produce(caller, (message.topic for message in op.messages))
    _calls(caller, op.calls)


def _settle(caller: KnownCaller, op: Ack | Nack | Renew) -> None:
    """A receipt begins with its topic. One that begins with what is no name holds nothing, and the store says so."""
    caller.need("consume", group=op.group)
    for topic in filter(is_name, _topics_of(op)):
        caller.need("consume", topic=topic, group=op.group)


def _topics_of(op: Ack | Nack | Renew) -> set[str]:
    return {receipt.partition("/")[0] for receipt in op.receipts}


def _put_topic(caller: KnownCaller, op: PutTopic) -> None:
    may: tuple[Permission, ...] = (
        ("admin",) if op.queues is not None or op.retention_ms is None else ("admin", "operate")
    )
    caller.need(*may, topic=op.name)


def _subscribe(caller: KnownCaller, op: Subscribe) -> None:
    """Whoever names an address for calls decides where they go."""
    try:
        parts = url_parts(op.url)
    except ValueError:
        caller.need("admin", topic=op.topic)  # admission says what is wrong with it
        return
    caller.need("admin", topic=op.topic, host=(parts.host, parts.port))


def _answer(caller: KnownCaller, op: AnswerChecks) -> None:
    caller.need("check-back", group=op.group)


def _admin_of_all(caller: KnownCaller) -> None:
    """Whoever makes tokens could give itself what it has not: so that is for those who have everything."""
    caller.need_every(("admin",), "topics", "groups", "hosts")


_RULES: dict[type, Callable[[KnownCaller, Any], None]] = {
    Prepare: _prepare,
    PreparePart: lambda caller, op: _produce(caller, (message.topic for message in op.messages)),
    PrepareColumns: lambda caller, op: _produce(caller, op.topics),
    Send: _send,
    Commit: lambda caller, op: caller.need("produce"),
    Rollback: lambda caller, op: caller.need("produce"),
    CommitBatch: lambda caller, op: caller.need("produce", group=op.app),
    DropParts: lambda caller, op: caller.need("produce"),
    Ack: _settle,
    Nack: _settle,
    Renew: _settle,
    CommitOffsets: lambda caller, op: caller.need("consume", topic=op.topic, group=op.group),
    Receive: lambda caller, op: caller.need("consume", topic=op.topic, group=op.group),
    AnswerChecks: _answer,
    OperatorResolve: lambda caller, op: caller.need("operate"),
    Resume: lambda caller, op: caller.need("operate"),
    Hurry: lambda caller, op: caller.need("operate"),
    HurryAll: lambda caller, op: caller.need_every(("operate",), "groups"),
    ResumeCalls: lambda caller, op: caller.need("operate"),
    StopCalls: lambda caller, op: caller.need("operate"),
    ResetGroup: lambda caller, op: caller.need("operate", topic=op.topic, group=op.group),
    TrimTo: lambda caller, op: caller.need("operate", topic=op.topic),
    ForgetApp: lambda caller, op: caller.need("operate", group=op.app),
    PutTopic: _put_topic,
    DeleteTopic: lambda caller, op: caller.need("admin", topic=op.name),
    Subscribe: _subscribe,
    Unsubscribe: lambda caller, op: caller.need("admin", topic=op.topic),
    DropCallTopic: lambda caller, op: caller.need("admin", topic=op.topic),
    PutToken: lambda caller, op: _admin_of_all(caller),
    DropToken: lambda caller, op: _admin_of_all(caller),
}


def _prepare_alike(op: Prepare) -> Any:
    if len(op.messages) != 1 or op.calls or op.check.via == "url":
        return None
    return (op.group, op.messages[0].topic)


def _settle_alike(op: Ack | Nack | Renew) -> Any:
    topics = _topics_of(op)
    if len(topics) != 1:
        return None
    (topic,) = topics
    return (type(op), op.group, topic) if len(topic) <= LONGEST_NAME else None


# Operations that the rules cannot tell apart have the same sign, None if they are to be looked at each by itself: what
# one caller may do a thousand times a second is found out once.
_ALIKE: dict[type, Callable[[Any], Any]] = {
    Prepare: _prepare_alike,
    Commit: type,
    Rollback: type,
    Ack: _settle_alike,
    Nack: _settle_alike,
    Renew: _settle_alike,
    Receive: lambda op: (Receive, op.group, op.topic),
}

# Whose transaction it is, only the store can tell: on these it asks with the permission whose groups count.
_GUARDED: dict[type, Permission] = {
    Commit: "produce",
    Rollback: "produce",
    AnswerChecks: "check-back",
    OperatorResolve: "operate",
    Resume: "operate",
    Hurry: "operate",
    ResumeCalls: "operate",
    StopCalls: "operate",
}


# What they hold was judged when it came; who claims, drops or adds to a part may be somebody else.
_WITH_PARTS = frozenset((Commit, Rollback, CommitBatch, DropParts, PreparePart, PrepareColumns))
_MAY_BE_GUARDED = _WITH_PARTS.union(_GUARDED)


def _guards_of(identity: Identity) -> dict[type, tuple[str, ...]]:
    """The groups whose transactions somebody may touch, by the kinds of operations for which not all of them are."""
    groups = {kind: identity.groups_for(permission) for kind, permission in _GUARDED.items()}
    # Without any, the operation is refused before.
    return {kind: patterns for kind, patterns in groups.items() if patterns and patterns != EVERY}


def _produces_of(identity: Identity) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] | None:
    """The groups and topics for which somebody produces, by its grants; None if groups alone decide."""
    pairs = tuple((grant.groups, grant.topics) for grant in identity.grants if grant.has("produce"))
    if not pairs or all(topics == EVERY for _, topics in pairs) or (EVERY, EVERY) in pairs:
        return None  # without any, the operation is refused before
    return pairs


# --- looks ---------------------------------------------------------------------------------------------------------


def _see_topic(caller: KnownCaller, *names: str) -> None:
    """That it is there, and how far it goes. Lists are shortened to what may be seen."""
    for name in names:
        caller.need(*_SEE_TOPIC, topic=name)


def _see_messages(caller: KnownCaller, topic: str) -> None:
    caller.need("consume", "read", topic=topic)


def _see_group(caller: KnownCaller, group: str | None = None, topic: str | None = None) -> None:
    caller.need(*_SEE_CONSUMERS, topic=topic, group=group)


def _see_everything(caller: KnownCaller, *_: str) -> None:
    """What cannot be told apart by groups is for those who may see all of them."""
    caller.need_every(_SEE_EVERYTHING, "groups")


def _see_turns(caller: KnownCaller) -> None:
    """What brokers of a cluster settle among themselves."""
    if caller.identity.kind != "broker":
        raise Forbidden("only the brokers of a cluster ask each other for this")


_LOOKS: dict[str, Callable[..., None]] = {
    "turns": _see_turns,
    "transaction": lambda caller, gid: caller.need(*_SEE_TRANSACTION),
    "transactions": lambda caller, *group: caller.need("read", "operate", group=group[0] if group else None),
    "calls": _see_everything,
    "call topics": lambda caller: caller.need(*_SEE_CALL_TOPIC),
    "call hosts": _see_everything,
    "group": _see_group,
    "ledger": lambda caller, *app: caller.need(*_SEE_APP, group=app[0] if app else None),
    "table": lambda caller, table: caller.need("read"),
    # One whose rows say nothing of whose they are.
    "whole table": lambda caller, table: caller.need_every(("read",), "groups"),
    "broker": lambda caller: None,
    "metrics": lambda caller: caller.need_every(_SEE_EVERYTHING, "topics", "groups"),
    "topic": _see_topic,
    "messages": _see_messages,
    "checks": lambda caller, group: caller.need("check-back", group=group),
    "tokens": lambda caller: _admin_of_all(caller),
    "audit": lambda caller, *_: caller.need_every(("operate", "admin"), "topics", "groups"),
}
