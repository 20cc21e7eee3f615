"""Whose something is: gids, receipts, topics, groups and rows of others are not touched, and not shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from access_tokens import ADMIN, Token, token
from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from raw_client import Answer, RawClient

SHOPS: dict[str, Any] = {"topics": ["shop.*"], "groups": ["shop", "shop.*"]}
SHOP = token("shop", "producer", "consumer", "caller", **SHOPS, hosts=["127.0.0.1:1"])
BANK = token("bank", "producer", "consumer", topics=["bank.*"], groups=["bank", "bank.*"])
SHOP_OPERATOR = token("shop-operator", "operator", **SHOPS)
SHOP_READER = token("shop-reader", "reader", **SHOPS)
OPERATOR = token("operator-of-all", "operator")
ALL = (SHOP, BANK, SHOP_OPERATOR, SHOP_READER, OPERATOR)
CALLED = "http://127.0.0.1:1/x"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="1h", log_level="warning", **known_tokens(*ALL)) as broker:
        yield broker
        assert "Traceback" not in broker.log_text()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as client:
        yield client


def ask(client: RawClient, who: Token, method: str, path: str, content: Any = None) -> Answer:
    body = None if content is None else json.dumps(content).encode()
    return client.request(method, path, body, who.headers)


def made(client: RawClient, name: str, *grants: dict[str, Any]) -> Token:
    """A token with several grants."""
    answer = ask(client, ADMIN, "POST", "/v1/tokens", {"name": name, "grants": list(grants)})
    assert answer.status == 201, answer
    return Token(answer.json()["token"], {})


def prepare(client: RawClient, who: Token, gid: str, group: str, **more: Any) -> None:
    content = {"gid": gid, "group": group, "messages": [{"topic": f"{group}.orders", "value": gid}], **more}
    answer = ask(client, who, "POST", "/v1/transactions", content)
    assert answer.status == 201, answer


def consume(client: RawClient, who: Token, group: str) -> None:
    """So that the group is known, and has an offset."""
    assert ask(client, who, "POST", "/v1/messages", {"messages": [{"topic": f"{group}.q", "value": "x"}]}).status == 201
    assert ask(client, who, "POST", f"/v1/groups/{group}/receive", {"topic": f"{group}.q"}).status == 200


def state(client: RawClient, gid: str) -> str:
    return str(ask(client, ADMIN, "GET", f"/v1/transactions/{gid}").json()["state"])


def batch(client: RawClient, who: Token, *ops: dict[str, Any]) -> Answer:
    return ask(client, who, "POST", "/v1/batch", {"ops": list(ops)})


# --- transactions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_gid_is_resolved_by_its_own_group_only(client: RawClient, outcome: str) -> None:
    gid = f"of-the-bank-{outcome}"
    prepare(client, BANK, gid, "bank")
    assert ask(client, SHOP, "POST", f"/v1/transactions/{gid}/{outcome}", {}).status == 403
    (result,) = batch(client, SHOP, {"op": outcome, "gid": gid}).json()["results"]
    assert result["error"] == "forbidden"
    assert state(client, gid) == "prepared"
    assert ask(client, BANK, "POST", f"/v1/transactions/{gid}/{outcome}", {}).status == 200


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_an_operators_word_is_an_operators(client: RawClient, outcome: str) -> None:
    """`by` is what somebody says of itself: it takes the permission to operate, on that group."""
    gid = f"forced-{outcome}"
    prepare(client, BANK, gid, "bank")
    path, by = f"/v1/transactions/{gid}/{outcome}", {"by": "operator"}
    for who in (BANK, SHOP, SHOP_READER, SHOP_OPERATOR):
        assert ask(client, who, "POST", path, by).status == 403
    assert state(client, gid) == "prepared"
    assert ask(client, OPERATOR, "POST", path, {}).status == 403  # an operator is no producer
    answer = ask(client, OPERATOR, "POST", path, by)
    assert (answer.status, answer.json()["resolved_by"]) == (200, "operator")


def test_a_transaction_of_another_group_is_not_there(client: RawClient) -> None:
    calls = {"calls": [{"url": CALLED}]}
    prepare(client, SHOP, "seen", "shop", **calls)
    for path in ("/v1/transactions/seen", "/v1/transactions/seen/calls", "/v1/transactions/seen/calls?wait_ms=1"):
        assert ask(client, BANK, "GET", path).status == 404
        assert ask(client, SHOP, "GET", path).status == 200
    nothing = ask(client, BANK, "GET", "/v1/transactions/never-was").problem()
    hidden = ask(client, BANK, "GET", "/v1/transactions/seen").problem()
    assert hidden.detail.replace("seen", "never-was") == nothing.detail
    assert ask(client, BANK, "GET", "/api/dtmsvr/query?gid=seen").json()["transaction"] is None


def test_whoever_consumes_for_every_group_sees_no_transactions_of_others(client: RawClient) -> None:
    some = (
        {"roles": ["producer"], "topics": ["shop.*"], "groups": ["shop"]},
        {"roles": ["consumer"], "topics": ["shop.*"]},
    )
    both = made(client, "sells-and-consumes", *some)
    prepare(client, BANK, "payroll", "bank")
    prepare(client, SHOP, "sale", "shop", calls=[{"url": CALLED}])
    for path in ("", "/calls", "/calls?wait_ms=1"):
        assert ask(client, both, "GET", f"/v1/transactions/payroll{path}").status == 404
        assert ask(client, both, "GET", f"/v1/transactions/sale{path}").status == 200
    assert ask(client, both, "GET", "/api/dtmsvr/query?gid=payroll").json()["transaction"] is None


def test_what_is_nobodys_is_listed_for_those_who_see_every_group(client: RawClient) -> None:
    """Whoever produces may ask about it by its gid, but is not told the gid."""
    some = (
        {"roles": ["reader"], "groups": ["shop"]},
        {"roles": ["producer"], "topics": ["shop.*"], "groups": ["shop"]},
    )
    limited = made(client, "reads-and-produces", *some)
    sent = {"gid": "sent-by-nobody", "calls": [{"url": CALLED}]}  # dtm's list has what has calls
    assert ask(client, ADMIN, "POST", "/v1/messages", sent).status == 201
    for path in ("/v1/transactions", "/api/dtmsvr/all?limit=1000"):
        assert b"sent-by-nobody" not in ask(client, limited, "GET", path).body
        assert b"sent-by-nobody" in ask(client, OPERATOR, "GET", path).body
    assert ask(client, limited, "GET", "/v1/transactions/sent-by-nobody").status == 200


def test_lists_have_only_what_may_be_seen(client: RawClient) -> None:
    for who, group in ((SHOP, "shop"), (BANK, "bank")):
        prepare(client, who, f"listed-{group}", group)
    for path in ("/v1/transactions", "/api/dtmsvr/all?limit=1000"):
        shown = ask(client, SHOP_READER, "GET", path).body
        assert b"bank" not in shown
    assert b"listed-shop" in ask(client, SHOP_READER, "GET", "/v1/transactions?state=prepared").body
    assert b"listed-bank" in ask(client, OPERATOR, "GET", "/v1/transactions?state=prepared").body
    assert ask(client, SHOP_READER, "GET", "/v1/transactions?group=bank").status == 403


def test_checks_are_asked_and_answered_by_their_group(client: RawClient) -> None:
    prepare(client, BANK, "asked", "bank")
    assert ask(client, SHOP, "POST", "/v1/checks/poll", {"group": "bank", "member": "m"}).status == 403
    answers = {"answers": {"asked": "committed"}}
    for content in (answers, {**answers, "group": "shop"}, {**answers, "group": "bank"}):
        assert ask(client, SHOP, "POST", "/v1/checks/answers", content).status == 403
    assert state(client, "asked") == "prepared"
    assert ask(client, BANK, "POST", "/v1/checks/answers", {**answers, "group": "bank"}).status < 300
    assert state(client, "asked") == "committed"


def test_operators_act_on_their_groups(client: RawClient) -> None:
    for who, group in ((SHOP, "shop"), (BANK, "bank")):
        prepare(client, who, f"hurried-{group}", group)
    assert ask(client, SHOP_OPERATOR, "POST", "/v1/transactions/hurried-bank/hurry").status == 403
    assert ask(client, SHOP_OPERATOR, "POST", "/v1/transactions/hurried-shop/hurry").status == 200
    for path in ("/api/dtmsvr/forceStop", "/api/dtmsvr/resetNextCronTime"):
        answer = ask(client, SHOP_OPERATOR, "POST", path, {"gid": "hurried-bank"})
        assert (answer.status, answer.json()["message"]) == (500, "no TransGlobal with gid: hurried-bank found")
    assert ask(client, SHOP_OPERATOR, "GET", "/api/dtmsvr/resetCronTime").status == 403
    assert state(client, "hurried-bank") == "prepared"


# --- messages ------------------------------------------------------------------------------------------------------


def test_nobody_sends_to_topics_of_others(client: RawClient) -> None:
    for topic, status in (("shop.orders", 201), ("bank.orders", 403), ("shopping", 403)):
        content = {"messages": [{"topic": topic, "value": "x"}]}
        assert ask(client, SHOP, "POST", "/v1/messages", content).status == status
        assert ask(client, SHOP, "POST", f"/v1/parts/part-{topic}", content).status == status
        content["group"] = "shop"  # type: ignore[assignment]
        assert ask(client, SHOP, "POST", "/v1/transactions", content).status == status
    mixed = [{"topic": topic, "value": "x"} for topic in ("shop.orders", "bank.orders")]
    assert ask(client, SHOP, "POST", "/v1/messages", {"messages": mixed}).status == 403


def test_nobody_prepares_for_a_group_of_others(client: RawClient) -> None:
    content = {"group": "bank", "messages": [{"topic": "shop.orders", "value": "x"}]}
    assert ask(client, SHOP, "POST", "/v1/transactions", content).status == 403


def test_calls_and_check_backs_go_to_hosts_that_were_granted(client: RawClient) -> None:
    for url, status in ((CALLED, 201), ("http://127.0.0.1:2/x", 403), ("http://localhost:1/x", 403)):
        called = {"gid": f"c{status}", "calls": [{"url": url}]}
        assert ask(client, SHOP, "POST", "/v1/messages", called).status == status
        check = {"group": "shop", "check": {"via": "url", "target": url}}
        assert ask(client, SHOP, "POST", "/v1/transactions", check).status == status
    assert ask(client, BANK, "POST", "/v1/messages", {"gid": "called", "calls": [{"url": CALLED}]}).status == 403


def test_messages_are_read_by_those_who_may(client: RawClient) -> None:
    sent = {"messages": [{"topic": "bank.secret", "value": "hush"}]}
    assert ask(client, BANK, "POST", "/v1/messages", sent).status == 201
    path = "/v1/topics/bank.secret"
    for who in (SHOP, SHOP_READER, SHOP_OPERATOR):
        for rest in ("", "/offsets?timestamp=0", "/queues/0/messages"):
            assert ask(client, who, "GET", path + rest).status == 403
        assert ask(client, who, "GET", "/v1/topics?names=bank.secret").status == 403
        assert b"bank" not in ask(client, who, "GET", "/v1/topics").body
    headers = {**SHOP_READER.headers, "Accept": "application/vnd.apache.arrow.stream"}
    assert client.request("GET", f"{path}/queues/0/messages", None, headers).status == 403
    assert ask(client, BANK, "GET", f"{path}/queues/0/messages").status == 200


def test_a_topic_that_may_be_seen_need_not_be_one_that_may_be_read(client: RawClient, broker: BrokerProcess) -> None:
    """Producers see where a topic ends; what is in it is for those who consume or read."""
    only = token("only-sends", "producer", topics=["shop.*"], groups=["shop"])
    with running_broker(**known_tokens(only)) as other, RawClient(other.url) as raw:
        sent = {"messages": [{"topic": "shop.orders", "value": "x"}]}
        assert ask(raw, only, "POST", "/v1/messages", sent).status == 201
        assert ask(raw, only, "GET", "/v1/topics/shop.orders").status == 200
        assert ask(raw, only, "GET", "/v1/topics/shop.orders/queues/0/messages").status == 403


def test_a_receipt_is_settled_by_its_group(client: RawClient) -> None:
    assert ask(client, BANK, "POST", "/v1/messages", {"messages": [{"topic": "bank.q", "value": "x"}]}).status == 201
    held = ask(client, BANK, "POST", "/v1/groups/bank/receive", {"topic": "bank.q"}).json()["deliveries"]
    receipts = {"receipts": [held[0]["receipt"]]}
    for way, more in (("ack", {}), ("nack", {}), ("renew", {"invisible_ms": 1_000})):
        for group in ("bank", "shop"):  # it is of a topic that is not the shop's, whatever group is said
            assert ask(client, SHOP, "POST", f"/v1/groups/{group}/{way}", {**receipts, **more}).status == 403
        answer = ask(client, ADMIN, "POST", f"/v1/groups/shop/{way}", {**receipts, **more})
        assert (answer.status, answer.json()["stale"]) == (409, receipts["receipts"])  # it holds nothing there
    assert batch(client, SHOP, {"op": "ack", "group": "bank", **receipts}).status == 403
    assert ask(client, BANK, "POST", "/v1/groups/bank/ack", receipts).status == 200


def test_in_a_group_of_several_topics_a_receipt_is_for_those_who_consume_its_topic(client: RawClient) -> None:
    for topic in ("shop.first", "shop.second"):
        assert ask(client, SHOP, "POST", "/v1/messages", {"messages": [{"topic": topic, "value": "x"}]}).status == 201
    grant = {"roles": ["consumer"], "topics": ["shop.first"], "groups": ["shop"]}
    first = made(client, "first-only", grant)
    for topic, status in (("shop.first", 200), ("shop.second", 403)):
        held = ask(client, SHOP, "POST", "/v1/groups/shop/receive", {"topic": topic}).json()["deliveries"]
        receipts = {"receipts": [held[0]["receipt"]]}
        for way, more in (("renew", {"invisible_ms": 60_000}), ("ack", {})):
            assert ask(client, first, "POST", f"/v1/groups/shop/{way}", {**receipts, **more}).status == status
        assert batch(client, first, {"op": "nack", "group": "shop", **receipts}).status == (
            403 if status == 403 else 200
        )


def test_groups_receive_from_topics_that_were_granted(client: RawClient) -> None:
    assert ask(client, SHOP, "POST", "/v1/groups/shop/receive", {"topic": "bank.q"}).status == 403
    assert ask(client, SHOP, "POST", "/v1/groups/bank/receive", {"topic": "shop.q"}).status == 403
    consume(client, SHOP, "shop")
    consume(client, BANK, "bank")
    shown = ask(client, SHOP_READER, "GET", "/v1/groups")
    assert b"shop" in shown.body
    assert b"bank" not in shown.body


def test_how_far_a_group_is_on_a_topic_is_shown_by_a_grant_for_both(client: RawClient) -> None:
    """That one covers the group and another one the topic is not enough."""
    for who, group in ((SHOP, "shop"), (BANK, "bank")):
        consume(client, who, group)
    crossed = ({"topics": ["shop.*"], "groups": ["bank"]}, {"topics": ["bank.*"], "groups": ["shop"]})
    for number, roles in enumerate((["consumer"], ["reader"], ["operator"])):
        other = made(client, f"crossed-{number}", *({"roles": roles, **one} for one in crossed))
        assert ask(client, other, "GET", "/v1/groups").json()["groups"] == []
        for group in ("shop", "bank"):
            assert ask(client, other, "GET", f"/v1/groups/{group}").json()["groups"] == []
            assert ask(client, other, "GET", f"/v1/groups/{group}/offsets?topic={group}.q").status == 403
    producer = made(client, "sees-topics", {"roles": ["producer"]}, {"roles": ["consumer"], "groups": ["nobodys"]})
    assert ask(client, producer, "GET", "/v1/groups").json()["groups"] == []


# --- tables and ledger ---------------------------------------------------------------------------------------------


def rows(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    return found


def test_tables_have_only_rows_that_may_be_seen(client: RawClient) -> None:
    for who, group in ((SHOP, "shop"), (BANK, "bank")):
        prepare(client, who, f"row-{group}", group)
        delayed = {"messages": [{"topic": f"{group}.later", "value": "x", "delay_ms": 3_600_000}]}
        assert ask(client, who, "POST", "/v1/messages", delayed).status == 201
        consume(client, who, group)
    for table, column in (("transactions", "group"), ("half", "topic"), ("offsets", "group"), ("delayed", "topic")):
        mine = rows(ask(client, SHOP_READER, "GET", f"/v1/tables/{table}"))
        assert mine, table
        assert all(row[column].startswith("shop") for row in mine), (table, mine)
        everybodys = rows(ask(client, OPERATOR, "GET", f"/v1/tables/{table}"))
        assert any(row[column] and row[column].startswith("bank") for row in everybodys), (table, everybodys)
    for table in ("op", "calls"):
        assert ask(client, SHOP_READER, "GET", f"/v1/tables/{table}").status == 403
        assert ask(client, SHOP_READER, "GET", f"/v1/tables/{table}/splits").status == 403
        assert ask(client, OPERATOR, "GET", f"/v1/tables/{table}").status == 200


def test_the_ledger_is_kept_by_application(client: RawClient) -> None:
    assert ask(client, SHOP, "POST", "/v1/ledger/shop.job/0", {}).status == 200
    assert ask(client, SHOP, "POST", "/v1/ledger/bank.job/0", {}).status == 403
    assert ask(client, BANK, "POST", "/v1/ledger/bank.job/0", {}).status == 200
    assert ask(client, SHOP_READER, "GET", "/v1/ledger/bank.job").status == 403
    assert [one["app"] for one in ask(client, SHOP_READER, "GET", "/v1/ledger").json()["apps"]] == ["shop.job"]
    assert ask(client, SHOP_OPERATOR, "DELETE", "/v1/ledger/bank.job").status == 403
    mixed = made(client, "asks-of-all", {"roles": ["consumer", "check-back"]}, {"roles": ["producer"], "groups": ["x"]})
    assert ask(client, mixed, "GET", "/v1/ledger").json()["apps"] == []


# --- parts, which belong to nobody ---------------------------------------------------------------------------------


def put_part(client: RawClient, who: Token, name: str, topic: str, index: int = 0) -> int:
    content = {"messages": [{"topic": topic, "value": "half"}], "index": index}
    return ask(client, who, "POST", f"/v1/parts/{name}", content).status


def test_a_part_is_touched_by_those_only_who_may_produce_all_it_holds(client: RawClient) -> None:
    assert put_part(client, SHOP, "shops-part", "shop.orders") == 201
    claimed = {"parts": [{"part": "shops-part", "count": 1}]}
    prepare(client, BANK, "banks-own", "bank")
    tries = [
        ask(client, BANK, "POST", "/v1/ledger/bank/1", claimed),
        ask(client, BANK, "POST", "/v1/transactions/banks-own/commit", claimed),
        ask(client, BANK, "POST", "/v1/transactions/banks-own/rollback", claimed),
        ask(client, BANK, "DELETE", "/v1/parts/shops-part"),
    ]
    assert [answer.status for answer in tries] == [403] * 4
    assert put_part(client, BANK, "shops-part", "bank.orders", index=1) == 403
    assert state(client, "banks-own") == "prepared"
    assert ask(client, SHOP, "POST", "/v1/ledger/shop/1", claimed).status == 200


def test_a_part_that_somebody_else_began_is_not_committed_unawares(client: RawClient) -> None:
    assert put_part(client, BANK, "taken-name", "bank.orders") == 201
    assert put_part(client, SHOP, "taken-name", "shop.orders", index=1) == 403
    claimed = {"parts": [{"part": "taken-name", "count": 1}]}
    assert ask(client, SHOP, "POST", "/v1/ledger/shop/9", claimed).status == 403


def test_a_group_claims_no_part_for_topics_of_another_grant(client: RawClient) -> None:
    """Who produces orders for the shop and bills for the bank sends no bills in the shop's name."""
    grants = ({"topics": [f"{name}.*"], "groups": [name]} for name in ("shop", "bank"))
    both = made(client, "two-producers", *({"roles": ["producer"], **one} for one in grants))
    assert put_part(client, both, "banks-part", "bank.orders") == 201
    claimed = {"parts": [{"part": "banks-part", "count": 1}]}
    for group in ("shop", "bank"):
        prepare(client, both, f"claims-{group}", group)
    assert ask(client, both, "POST", "/v1/transactions/claims-shop/commit", claimed).status == 403
    assert ask(client, both, "POST", "/v1/ledger/shop/77", claimed).status == 403
    assert ask(client, both, "POST", "/v1/transactions/claims-bank/commit", claimed).status == 200


# --- what an attack has shown ---------------------------------------------------------------------------------------


def test_a_rollback_of_what_was_never_prepared_says_what_it_did(client: RawClient) -> None:
    answer = ask(client, SHOP, "POST", "/v1/transactions/never-prepared/rollback", {})
    assert (answer.status, answer.json()["state"]) == (200, "rolled_back")


def test_an_operators_word_claims_no_parts(client: RawClient) -> None:
    prepare(client, SHOP, "by-word", "shop")
    content = {"by": "operator", "parts": [{"part": "nowhere", "count": 5}]}
    assert ask(client, OPERATOR, "POST", "/v1/transactions/by-word/commit", content).status == 400
    assert state(client, "by-word") == "prepared"


def test_an_admin_of_some_hosts_sends_no_calls_elsewhere_through_a_call_topic(client: RawClient) -> None:
    made = ask(client, ADMIN, "POST", "/v1/tokens", {"name": "few-hosts", "roles": ["admin"], "hosts": ["evil"]}).json()
    limited = Token(made["token"], {})
    path = "/v1/call-topics/news/subscribers"
    assert ask(client, limited, "PUT", path, {"url": CALLED}).status == 403
    assert ask(client, ADMIN, "PUT", path, {"url": CALLED}).status == 200


@pytest.mark.parametrize("limited", [{"topics": ["shop.*"]}, {"groups": ["shop"]}])
def test_what_tells_of_everything_is_for_those_who_see_everything(client: RawClient, limited: dict[str, Any]) -> None:
    name = f"some-{next(iter(limited))}"
    made = ask(client, ADMIN, "POST", "/v1/tokens", {"name": name, "roles": ["admin"], **limited}).json()
    for path in ("/v1/audit", "/metrics", "/api/metrics"):
        assert ask(client, Token(made["token"], {}), "GET", path).status == 403
        assert ask(client, ADMIN, "GET", path).status == 200


def test_whoever_produces_can_ask_what_became_of_what_it_sent_without_a_group(client: RawClient) -> None:
    sent = {"gid": "sent-by-shop", "messages": [], "calls": [{"url": CALLED}]}
    assert ask(client, SHOP, "POST", "/v1/messages", sent).status == 201
    for path in ("", "/calls", "/calls?wait_ms=1"):
        assert ask(client, SHOP, "GET", f"/v1/transactions/sent-by-shop{path}").status == 200
        assert ask(client, SHOP_READER, "GET", f"/v1/transactions/sent-by-shop{path}").status == 404
