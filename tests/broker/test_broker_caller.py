"""A caller remembers what it was allowed; it must never take one thing for another."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tallystick.broker.caller import MOST_KEPT, Callers, KnownCaller
from tallystick.core.access import Grant, Identity
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import Forbidden
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Check, Commit, Nack, Prepare, Renew, Rollback, Send
from tallystick.store.protocol import ClaimChecks, DropToken, Guarded, HurryAll, PutToken, Receive, TokenRecord

GROUPS, TOPICS = ("shop", "bank", "Ack", "orders"), ("orders", "bills", "shop", "Ack")
GRANTS = [
    (Grant(("producer",), ("orders",), ("shop",)),),
    (Grant(("producer",), ("orders",), ("shop",)), Grant(("producer",), ("bills",), ("bank",))),
    (Grant(("consumer",), ("orders",), ("shop",)), Grant(("producer",), ("*",), ("bank",))),
    (Grant(("producer", "caller"), ("*",), ("*",), ("127.0.0.1:1",)),),
    (Grant(("reader",)),),
]


def operations() -> list[Any]:
    made: list[Any] = [Commit("t"), Rollback("t")]
    for group, topic in itertools.product(GROUPS, TOPICS):
        message = OutgoingMessage(topic, b"x")
        made += [
            Prepare("t", group, [message]),
            Prepare("t", group, [message, OutgoingMessage("orders", b"x")]),
            Prepare("t", group, [message], Check("url", "http://127.0.0.1:1/")),
            Prepare("t", group, [message], Check("url", "http://127.0.0.1:2/")),
            Prepare("t", group, [message], calls=[OutgoingCall("http://127.0.0.1:2/")]),
            Send([message]),
            Ack(group, []),
            Ack(group, [f"{topic}/0/1/2"]),
            Ack(group, [f"{topic}/0/1/2", "orders/0/1/2"]),
            Nack(group, [f"{topic}/0/1/2"]),
            Renew(group, [], 1),
            Renew(group, [f"{topic}/0/1/2"], 1),
            Receive(group, topic, 1, 1),
        ]
    return made


def allowed(caller: KnownCaller, op: Any) -> bool:
    try:
        caller.may_do([op])
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize("grants", GRANTS)
def test_what_was_allowed_before_changes_nothing(grants: tuple[Grant, ...]) -> None:
    identity = Identity("x", "token", grants)
    used = KnownCaller(identity)
    fresh = [allowed(KnownCaller(identity), op) for op in operations()]
    for _ in range(2):
        assert [allowed(used, op) for op in operations()] == fresh
    assert any(fresh) or grants == GRANTS[-1]
    assert not all(fresh)


def test_what_is_remembered_has_an_end() -> None:
    caller = KnownCaller(Identity("x", "token", (Grant(("admin",)),)))
    for number in range(3 * MOST_KEPT):
        caller.may_do([Prepare("t", f"group-{number}", [OutgoingMessage("orders", b"x")])])
    assert max(len(caller._done), len(caller._allowed)) <= MOST_KEPT
    callers = Callers()
    for number in range(3 * MOST_KEPT):
        callers.of(Identity("x", "token", ()), f"10.0.0.{number}")
    assert len(callers._known) <= MOST_KEPT


def test_what_only_the_broker_does_is_nobodys() -> None:
    with pytest.raises(Forbidden, match="the broker's own"):
        KnownCaller(Identity("x", "token", (Grant(("admin",)),))).may_do([ClaimChecks([1], 1, 1)])


def test_only_operations_on_transactions_are_guarded_and_only_for_some_groups() -> None:
    ops = [Commit("t"), Ack("shop", [])]
    every = KnownCaller(Identity("x", "token", (Grant(("producer",)),)))
    assert every.guarded(ops) is ops
    some = KnownCaller(Identity("x", "token", (Grant(("producer",), groups=("shop", "shop.*")),)))
    assert some.guarded(ops) == [Guarded(ops[0], ("shop", "shop.*")), ops[1]]


@pytest.mark.parametrize(
    "less",
    [
        {"topics": ("orders",)},
        {"groups": ("shop", "*x")},
        {"hosts": ("*.internal",)},
        {"hosts": ("*:0",)},
        {"hosts": ("*:443",)},
        {"topics": ("**",)},
        {"groups": ("***",)},
    ],
)
def test_an_admin_of_something_makes_no_tokens(less: dict[str, tuple[str, ...]]) -> None:
    """Or it would give itself everything."""
    record = TokenRecord("more", "i", "d", (Grant(("admin",)),), 0)
    some = KnownCaller(Identity("x", "token", (Grant(("admin",), **less),)))
    everything = KnownCaller(Identity("x", "token", (Grant(("reader",)), Grant(("admin",)))))
    for op in (PutToken(record), DropToken("more")):
        assert allowed(everything, op)
        assert not allowed(some, op)
    everything.may_see("tokens")
    with pytest.raises(Forbidden):
        some.may_see("tokens")


def test_to_administer_here_and_there_is_not_to_administer_everything() -> None:
    """One grant must cover all: two of half each are not one of everything."""
    grants = (Grant(("admin",), topics=("orders",)), Grant(("admin",), groups=("shop",)))
    halves = KnownCaller(Identity("x", "token", grants))
    assert not allowed(halves, DropToken("more"))
    for look in ("tokens", "metrics", "audit"):
        with pytest.raises(Forbidden):
            halves.may_see(look)


@pytest.mark.parametrize("pattern", ["**", "*-*", "*:*", "?"])
def test_what_is_of_every_group_is_for_no_pattern_that_a_star_would_fit(pattern: str) -> None:
    some = KnownCaller(Identity("x", "token", (Grant(("admin",), groups=(pattern,)),)))
    every = KnownCaller(Identity("x", "token", (Grant(("admin",), groups=("shop", "*")),)))
    assert not allowed(some, HurryAll(0, 1))
    assert allowed(every, HurryAll(0, 1))
    for look, *names in (("calls",), ("call hosts",), ("whole table", "op"), ("metrics",), ("audit",)):
        every.may_see(look, *names)
        with pytest.raises(Forbidden, match="every group"):
            some.may_see(look, *names)
    assert not some.sees_every_row
    assert every.sees_every_row


def test_another_identity_of_the_same_name_is_another_caller() -> None:
    """A token that was revoked and made again with less has nothing of what the old one had."""
    callers = Callers()
    old, new = (Identity("x", "token", (Grant((role,)),)) for role in ("admin", "reader"))
    assert callers.of(old, "here") is callers.of(old, "here")
    assert allowed(callers.of(old, "here"), Commit("t"))
    assert not allowed(callers.of(new, "here"), Commit("t"))
