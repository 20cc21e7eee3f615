"""What a caller may do and see: a rule for each operation that a door takes, and for each kind of look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from tallystick.broker.caller import ANYBODY, KnownCaller
from tallystick.core.access import PERMISSIONS, Grant, Identity
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import Forbidden
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import (
    Ack,
    AnswerChecks,
    Check,
    ClientOp,
    Commit,
    CommitBatch,
    CommitOffsets,
    DropParts,
    Nack,
    PartRef,
    Prepare,
    PrepareColumns,
    PreparePart,
    Renew,
    Rollback,
    Send,
)
from tallystick.store import protocol
from tallystick.store.protocol import Guarded, TokenRecord

MESSAGE = OutgoingMessage("orders.eu", b"x")
# Each operation, and the permission that is enough for it.
OPERATIONS: list[tuple[Any, str]] = [
    (Prepare("t", "shop", [MESSAGE]), "produce"),
    (PreparePart("p", [MESSAGE]), "produce"),
    (PrepareColumns("p", 0, None, 1, 0, [], [(0, MESSAGE)]), "produce"),
    (Send([MESSAGE]), "produce"),
    (Commit("t"), "produce"),
    (Rollback("t"), "produce"),
    (CommitBatch("shop", 1, "t"), "produce"),
    (DropParts(["p"]), "produce"),
    (Ack("shop", ["orders.eu/0/1/2"]), "consume"),
    (Nack("shop", ["orders.eu/0/1/2"]), "consume"),
    (Renew("shop", ["orders.eu/0/1/2"], 1), "consume"),
    (CommitOffsets("shop", "orders.eu", {}), "consume"),
    (protocol.Receive("shop", "orders.eu", 1, 1), "consume"),
    (AnswerChecks({"t": "committed"}, group="shop"), "check-back"),
    (protocol.OperatorResolve("t", "committed"), "operate"),
    (protocol.Resume("t"), "operate"),
    (protocol.Hurry("t"), "operate"),
    (protocol.HurryAll(0, 1), "operate"),
    (protocol.ResumeCalls("t"), "operate"),
    (protocol.StopCalls("t"), "operate"),
    (protocol.ResetGroup("shop", "orders.eu"), "operate"),
    (protocol.TrimTo("orders.eu", {}, 1), "operate"),
    (protocol.ForgetApp("shop"), "operate"),
    (protocol.PutTopic("orders.eu", retention_ms=1), "operate"),
    (protocol.PutTopic("orders.eu", 4), "admin"),
    (protocol.DeleteTopic("orders.eu"), "admin"),
    (protocol.Subscribe("orders.eu", "http://a/"), "admin"),
    (protocol.Unsubscribe("orders.eu", "http://a/"), "admin"),
    (protocol.DropCallTopic("orders.eu"), "admin"),
    (protocol.PutToken(TokenRecord("n", "i", "d", (), 0)), "admin"),
    (protocol.DropToken("n"), "admin"),
]
# Of these the store is asked, and with what.
OF_THE_STORE: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            Commit,
            Rollback,
            protocol.OperatorResolve,
            protocol.Resume,
            protocol.Hurry,
            protocol.ResumeCalls,
            protocol.StopCalls,
        ),
        lambda op: Guarded(op, ("depot",)),
    ),
    DropParts: lambda op: Guarded(op, ("*",), ((("depot",), ("bills",)),)),
}
INTERNAL = {
    protocol.ClaimChecks,
    protocol.FailChecks,
    protocol.ParkOld,
    protocol.PromoteDelayed,
    protocol.ExpireParts,
    protocol.ExpireTombstones,
    protocol.TrimTopics,
    protocol.ClaimCalls,
    protocol.FinishCalls,
    protocol.RequeueCalls,
}


def caller(*roles: Any, **objects: Any) -> KnownCaller:
    grants = (Grant(roles, **objects),) if roles else ()
    return KnownCaller(Identity("shop", "token", grants))


def refused(who: KnownCaller, op: Any) -> bool:
    try:
        who.may_do([op])
    except Forbidden:
        return True
    return False


def named(given: Any) -> str:
    return type(given).__name__ if not isinstance(given, str) else given


def test_every_operation_has_a_rule_here_or_is_the_brokers_own() -> None:
    known = {type(op) for op, _ in OPERATIONS}
    everything = {*get_args(ClientOp), PrepareColumns, *get_args(protocol.BrokerOp)}
    sweeps = {kind for kind in everything if kind.__name__.startswith("Expire")}
    assert everything - known - sweeps == INTERNAL - sweeps


@pytest.mark.parametrize(("op", "enough"), OPERATIONS, ids=named)
def test_one_permission_is_enough_and_the_others_are_not(op: Any, enough: str) -> None:
    allowed = {permission for permission in PERMISSIONS if not refused(caller(permission), op)}
    assert allowed - {"admin"} == {enough} - {"admin"}
    assert "admin" in allowed


@pytest.mark.parametrize(("op", "enough"), OPERATIONS, ids=named)
def test_what_is_named_must_be_covered(op: Any, enough: str) -> None:
    """On other topics, groups and hosts the right permission is none. Of transactions only the store can tell whose
    they are: there the operation is guarded."""
    elsewhere = caller(enough, topics=("bills",), groups=("depot",), hosts=("nowhere",))
    if type(op) not in OF_THE_STORE:
        assert refused(elsewhere, op)
    else:
        assert elsewhere.guarded([op]) == [OF_THE_STORE[type(op)](op)]


def test_whoever_names_parts_is_asked_for_their_topics() -> None:
    some = caller("producer", topics=("bills",))
    parts = [PartRef("p", 1)]
    for op in (Commit("t", parts), CommitBatch("shop", 1, "t", parts), Rollback("t", ["p"]), PreparePart("p", [])):
        assert some.guarded([op]) == [Guarded(op, ("*",), ((("*",), ("bills",)),))]
    assert some.guarded([Commit("t"), Rollback("t")]) == [Commit("t"), Rollback("t")]


@pytest.mark.parametrize("kind", [Ack, Nack, lambda group, receipts: Renew(group, receipts, 1)])
def test_a_receipt_is_settled_by_those_who_consume_its_topic(kind: Any) -> None:
    some = caller("consumer", topics=("orders.*",), groups=("shop",))
    mine, foreign = "orders.eu/0/1/2", "bills/0/1/2"
    for _ in range(2):
        assert not refused(some, kind("shop", [mine]))
        assert not refused(some, kind("shop", []))
        assert refused(some, kind("shop", [foreign]))
        assert refused(some, kind("shop", [mine, foreign]))
        assert refused(some, kind("depot", [mine]))
    # What nobody has made is no topic's: that it holds nothing, the store says.
    assert not refused(some, kind("shop", ["", "no receipt", "x~bills/0/1/2"]))


def test_groups_and_topics_of_several_grants_are_not_mixed() -> None:
    pairs = ((("shop",), ("orders",)), (("bank",), ("bills",)))
    grants = tuple(Grant(("producer",), topics, groups) for groups, topics in pairs)
    some = KnownCaller(Identity("x", "token", grants))
    claims = Commit("t", [PartRef("p", 1)])
    assert some.guarded([claims, Commit("t")]) == [
        Guarded(claims, ("shop", "bank"), pairs),
        Guarded(Commit("t"), ("shop", "bank")),
    ]


def test_whoever_may_touch_every_group_is_not_guarded() -> None:
    assert caller("admin").guarded([Commit("t")]) == [Commit("t")]
    assert ANYBODY.guarded([Commit("t")]) == [Commit("t")]


def test_calls_and_check_backs_go_to_hosts_that_are_granted() -> None:
    url = "http://billing.internal:8080/pay"
    calling = Prepare("t", "shop", [MESSAGE], calls=[OutgoingCall(url, b"")])
    asked = Prepare("t", "shop", [MESSAGE], Check("url", url))
    for op in (calling, asked, Send([], "t", [OutgoingCall(url, b"")])):
        assert refused(caller("producer"), op)
        assert refused(caller("producer", "caller", hosts=("billing.internal:80",)), op)
        assert not refused(caller("producer", "caller", hosts=("*.internal:8080",)), op)


def test_calls_to_a_call_topic_need_that_topic() -> None:
    op = Send([], "t", [OutgoingCall("topic://news", b"")])
    assert refused(caller("producer", "caller", topics=("bills",)), op)
    assert not refused(caller("producer", "caller", topics=("news",)), op)


def test_every_topic_of_a_transaction_is_asked_for() -> None:
    op = Prepare("t", "shop", [MESSAGE, OutgoingMessage("bills", b"x")])
    assert refused(caller("producer", topics=("orders.*",)), op)
    assert not refused(caller("producer", topics=("orders.*", "bills")), op)


def test_what_only_the_broker_does_comes_through_no_door() -> None:
    assert refused(caller("admin"), protocol.ExpireParts(1))


LOOKS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "transaction": (("t",), {"produce", "check-back", "read", "operate"}),
    "transactions": (("shop",), {"read", "operate"}),
    "calls": ((), {"read", "operate"}),
    "call topics": ((), {"call", "read", "operate"}),
    "call hosts": ((), {"read", "operate"}),
    "group": (("shop", "orders.eu"), {"consume", "read", "operate"}),
    "ledger": (("shop",), {"produce", "read", "operate"}),
    "table": (("half",), {"read"}),
    "broker": ((), set(PERMISSIONS)),
    "metrics": ((), {"read", "operate"}),
    "topic": (("orders.eu",), {"produce", "consume", "read", "operate"}),
    "messages": (("orders.eu",), {"consume", "read"}),
    "checks": (("shop",), {"check-back"}),
    "tokens": ((), set()),
    "audit": ((), {"operate"}),
}


@pytest.mark.parametrize("what", LOOKS)
def test_a_look_needs_one_of_its_permissions(what: str) -> None:
    names, enough = LOOKS[what]

    def sees(permission: Any) -> bool:
        try:
            caller(permission).may_see(what, *names)
        except Forbidden:
            return False
        return True

    assert {permission for permission in PERMISSIONS if sees(permission)} == enough | {"admin"}


def test_whoever_is_refused_is_told_what_is_missing() -> None:
    with pytest.raises(Forbidden, match=r"shop needs the permission `produce` on topic 'orders.eu', group 'shop'"):
        caller("reader").may_do([Prepare("t", "shop", [MESSAGE])])
