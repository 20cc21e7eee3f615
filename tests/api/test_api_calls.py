"""Calls through the native API, one request each, with a broker that makes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from brokers import BrokerProcess, running_broker
from busi import ERROR, ONGOING, SUCCESS, Busi, Reply, running_busi
from eventually import eventually_equal
from raw_client import RawClient


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(call_retry_first="50ms", check_after="1h") as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as client:
        yield client


@pytest.fixture
def service() -> Iterator[Busi]:
    with running_busi() as busi:
        yield busi


def asked(service: Busi, gid: str) -> list[tuple[str, bytes]]:
    return [(call.path, call.body) for call in service.calls(gid)]


def json(client: RawClient, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    answer = client.json(method, path, body)
    assert answer.status == status, answer
    return answer.json()


def becomes(client: RawClient, gid: str, state: str) -> None:
    eventually_equal(lambda: json(client, "GET", f"/v1/transactions/{gid}/calls")["state"], state)


def test_calls_are_made_after_the_commit_in_order_and_shown(client: RawClient, service: Busi) -> None:
    calls = [{"url": f"{service.url}/one", "body": {"n": 1}}, {"url": f"{service.url}/two", "body": "text"}]
    body = {"gid": "in-order", "group": "shop", "calls": calls, "remark": "why"}
    assert json(client, "POST", "/v1/transactions", body, 201)["calls"] == 2
    held = json(client, "GET", "/v1/transactions/in-order/calls")
    assert (held["state"], held["transaction"], held["remark"]) == ("held", "prepared", "why")
    assert asked(service, "in-order") == []
    json(client, "POST", "/v1/transactions/in-order/commit", {})
    done = json(client, "GET", "/v1/transactions/in-order/calls?wait_ms=10000")
    assert [(call["branch"], call["state"], call["attempts"]) for call in done["calls"]] == [
        ("01", "done", 1),
        ("02", "done", 1),
    ]
    assert asked(service, "in-order") == [("/one", b'{"n":1}'), ("/two", b"text")]


def test_a_call_that_fails_is_seen_with_its_error_then_parked_resumed_and_done(
    client: RawClient, service: Busi
) -> None:
    service.default = ERROR
    sent = {"gid": "parks", "calls": [{"url": f"{service.url}/x"}], "call_options": {"max_attempts": 2}}
    json(client, "POST", "/v1/messages", sent, 201)
    first = json(client, "GET", "/v1/transactions/parks/calls?wait_ms=10000")
    assert first["calls"][0]["attempts"] >= 1
    assert "500" in first["calls"][0]["last_error"]
    becomes(client, "parks", "parked")
    listed = json(client, "GET", "/v1/calls?state=parked")
    assert [call["gid"] for call in listed["calls"]] == ["parks"]
    service.default = Reply(204)
    json(client, "POST", "/v1/transactions/parks/calls/resume")
    becomes(client, "parks", "done")
    assert json(client, "GET", "/v1/calls?state=parked")["calls"] == []


def test_calls_can_be_stopped_and_hurried(client: RawClient, service: Busi) -> None:
    service.default = ONGOING
    for gid in ("stopped", "hurried"):
        sent = {"gid": gid, "calls": [{"url": f"{service.url}/x"}], "call_options": {"retry_ms": 3_600_000}}
        json(client, "POST", "/v1/messages", sent, 201)
        json(client, "GET", f"/v1/transactions/{gid}/calls?wait_ms=10000")
    assert json(client, "POST", "/v1/transactions/stopped/calls/stop")["state"] == "stopped"
    service.default = SUCCESS
    json(client, "POST", "/v1/transactions/hurried/hurry")
    becomes(client, "hurried", "done")
    assert len(asked(service, "stopped")) == 1
    assert client.json("POST", "/v1/transactions/hurried/calls/stop").status == 409
    assert client.json("POST", "/v1/transactions/nobody/calls/stop").status == 404
    assert client.json("GET", "/v1/transactions/nobody/calls").status == 404
    assert client.json("GET", "/v1/transactions/nobody/calls?wait_ms=50").status == 404


def test_call_topics_through_the_api(client: RawClient, service: Busi) -> None:
    for path in ("/a", "/b"):
        body = {"url": service.url + path, "remark": path}
        json(client, "PUT", "/v1/call-topics/news/subscribers", body)
    assert client.json("PUT", "/v1/call-topics/news/subscribers", {"url": service.url + "/a"}).status == 409
    sent = {"gid": "news", "calls": [{"url": "topic://news", "body": "x"}], "call_options": {"concurrent": True}}
    json(client, "POST", "/v1/messages", sent, 201)
    done = json(client, "GET", "/v1/transactions/news/calls?wait_ms=10000")
    assert {(call["branch"], call["state"]) for call in done["calls"]} == {("01-01", "done"), ("01-02", "done")}
    assert {path for path, _ in asked(service, "news")} == {"/a", "/b"}
    assert client.json("DELETE", f"/v1/call-topics/news/subscribers?url={service.url}/a").status == 204
    (topic,) = json(client, "GET", "/v1/call-topics")["topics"]
    assert [one["url"] for one in topic["subscribers"]] == [f"{service.url}/b"]
    assert json(client, "GET", "/v1/call-topics/news") == topic
    assert client.json("DELETE", "/v1/call-topics/news").status == 204
    assert client.json("GET", "/v1/call-topics/news").status == 404
    hosts = json(client, "GET", "/v1/call-hosts")["hosts"]
    assert service.url in {host["name"] for host in hosts}


def test_a_commit_can_hold_its_calls_back(client: RawClient, service: Busi) -> None:
    body = {"gid": "later", "group": "shop", "calls": [{"url": f"{service.url}/x"}]}
    json(client, "POST", "/v1/transactions", body, 201)
    json(client, "POST", "/v1/transactions/later/commit", {"delay_ms": 3_600_000})
    (call,) = json(client, "GET", "/v1/transactions/later/calls?wait_ms=300")["calls"]
    assert (call["state"], call.get("attempts", 0)) == ("waiting", 0)
    assert asked(service, "later") == []
