"""Every way into a broker passes the place where its caller is asked for: nothing is done or shown around it."""

from __future__ import annotations

import inspect as python_inspect
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
from inner_broker import inside

from tallystick.broker.caller import Caller
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import InvalidRequest, NotAllowed, NotFound, OutcomeConflict
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Commit, Prepare, Rollback, Send
from tallystick.core.token_records import TokenRecord
from tallystick.core.wire import CheckPoll, ReceiveRequest, ResetRequest, TopicSpec


class Nobody(Caller):
    """May do nothing and see nothing; keeps what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, ...]] = []

    def may_do(self, ops: Sequence[Any]) -> None:
        self.asked += [(type(op).__name__,) for op in ops]
        raise NotAllowed("not for you")

    def may_see(self, what: str, *names: str) -> None:
        self.asked.append((what, *names))
        raise NotAllowed("not for you")


async def go(door: BrokerDoor, way: str, given: tuple[Any, ...]) -> None:
    found = getattr(door, way)(*given)
    assert isinstance(found, Awaitable), "it was shown without asking"
    await found


# What each way is asked with, and what the caller is then asked about.
WAYS: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "batch": (([Commit("t")],), ("Commit",)),
    "do": ((Send([]),), ("Send",)),
    "do_and_show": ((Commit("t"),), ("Commit",)),
    "commit_of_group": ((Commit("t"), "shop"), ("Commit",)),
    "resolve": (("t", "committed"), ("OperatorResolve",)),
    "resume": (("t",), ("Resume",)),
    "hurry": (("t",), ("Hurry",)),
    "hurry_all": ((0, 1), ("HurryAll",)),
    "resume_calls": (("t",), ("ResumeCalls",)),
    "stop_calls": (("t",), ("StopCalls",)),
    "subscribe": (("news", "http://127.0.0.1:1/", ""), ("Subscribe",)),
    "unsubscribe": (("news", "http://127.0.0.1:1/"), ("Unsubscribe",)),
    "drop_call_topic": (("news",), ("DropCallTopic",)),
    "put_topic": (("orders", TopicSpec()), ("PutTopic",)),
    "delete_topic": (("orders",), ("DeleteTopic",)),
    "trim": (("orders", {0: 0}), ("TrimTo",)),
    "reset_group": (("g", ResetRequest("orders", "latest")), ("ResetGroup",)),
    "forget_app": (("app",), ("ForgetApp",)),
    "receive": (("g", ReceiveRequest("orders")), ("Receive",)),
    "transaction": (("t",), ("transaction", "t")),
    "transactions": ((None, "shop", None, 1), ("transactions", "shop")),
    "whole": (("t",), ("transaction", "t")),
    "wholes": ((None, None, 1), ("transactions",)),
    "calls": (("t",), ("transaction", "t")),
    "wait_for_calls": (("t", 0.0), ("transaction", "t")),
    "list_calls": ((None, None, 1), ("calls",)),
    "call_topics": ((), ("call topics",)),
    "call_hosts": ((), ("call hosts",)),
    "called_hosts": ((), ("call hosts",)),
    "cluster": ((), ("broker",)),
    "take_turn": (("topic/orders", "one"), ("turns",)),
    "give_turn_back": (("topic/orders", "one"), ("turns",)),
    "groups": (("g",), ("group", "g")),
    "stored_offsets": (("g", "orders"), ("group", "g", "orders")),
    "ledger": (("app",), ("ledger", "app")),
    "ledgers": (("", 1), ("ledger",)),
    "splits": (("half", None, 1), ("table", "half")),
    "page": (("half", 1), ("table", "half")),
    "info": ((), ("broker",)),
    "metrics": ((), ("metrics",)),
    "families": ((), ("metrics",)),
    "topic": (("orders",), ("topic", "orders")),
    "known_topic": (("orders",), ("topic", "orders")),
    "offsets_at": (("orders", 0), ("topic", "orders")),
    "read": (("orders", 0, 0, 1, 1), ("messages", "orders")),
    "fetch": (("orders", 0, 0, 1, 1, 0), ("messages", "orders")),
    "ends": ((["orders"], None, 0), ("topic", "orders")),
    "put_token": ((TokenRecord("t", "id", "digest", (), 0),), ("PutToken",)),
    "drop_token": (("t",), ("DropToken",)),
    "tokens": ((), ("tokens",)),
    "audit": ((1,), ("audit",)),
    "poll_checks": ((CheckPoll("shop", "m"),), ("checks", "shop")),
}
# What says nothing of anybody's messages: who asks, names, the time, whether there is work to be had, counting; and
# into how many queues messages are divided that the caller is about to be asked about.
OPEN = {
    "of",
    "open",
    "caller_of",
    "whoami",
    "new_gid",
    "new_gid_of",
    "store_id",
    "now_ms",
    "not_ready",
    "answered",
    "queues_of",
}


def test_every_way_is_known_here() -> None:
    public = {name for name, _ in python_inspect.getmembers(BrokerDoor) if not name.startswith("_")}
    assert public == WAYS.keys() | OPEN


@pytest.mark.parametrize("way", WAYS)
async def test_a_caller_who_may_nothing_gets_nowhere(way: str) -> None:
    given, asked = WAYS[way]
    async with inside() as broker:
        await broker.do(Prepare("t", "shop", [OutgoingMessage("orders", b"x")]))
        nobody = Nobody()
        with pytest.raises(NotAllowed, match="not for you"):
            await go(broker.broker.door(nobody), way, given)
        assert nobody.asked == [asked]
        assert (await broker.view("t")).state == "prepared"


async def test_a_single_operation_is_refused_with_the_place_as_its_caller_knows_it() -> None:
    async with inside(max_message_bytes=10) as broker:
        with pytest.raises(Exception, match=r"^messages\[0\]") as caught:
            await broker.door.do(Send([OutgoingMessage("orders", bytes(11))]))
        assert getattr(caught.value, "field", None) == "messages[0].value"
        await broker.door.do(Prepare("t", "shop", []))
        await broker.door.do(Rollback("t"))
        with pytest.raises(OutcomeConflict):
            await broker.door.do(Commit("t"))
        with pytest.raises(NotFound):
            await broker.door.resume("nobody")


async def test_receipts_that_hold_nothing_are_an_answer_and_nonsense_is_a_refusal() -> None:
    async with inside() as broker:
        assert (await broker.door.do(Ack("g", ["orders/0/0/1"]))).stale == ["orders/0/0/1"]
        with pytest.raises(InvalidRequest):
            await broker.door.do(Ack("g", ["nonsense"]))
