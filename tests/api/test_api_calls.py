"""Calls through the native API, one request each, with a broker that makes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from brokers import BrokerProcess, running_broker
from raw_client import RawClient


class Service:
    """Answers each path with the status that was set for it, and keeps what it was asked."""

    def __init__(self) -> None:
        self.statuses: dict[str, int] = {}
        self.asked: list[tuple[str, str, bytes]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.partition("?")[0]
                service.asked.append((path, self.headers["Tallystick-Gid"], body))
                self.send_response(service.statuses.get(path, 200))
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(call_retry_first="50ms", check_after="1h") as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as client:
        yield client


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


def json(client: RawClient, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    answer = client.json(method, path, body)
    assert answer.status == status, answer
    return answer.json()


def test_calls_are_made_after_the_commit_in_order_and_shown(client: RawClient, service: Service) -> None:
    calls = [{"url": f"{service.url}/one", "body": {"n": 1}}, {"url": f"{service.url}/two", "body": "text"}]
    body = {"gid": "in-order", "group": "shop", "calls": calls, "remark": "why"}
    assert json(client, "POST", "/v1/transactions", body, 201)["calls"] == 2
    held = json(client, "GET", "/v1/transactions/in-order/calls")
    assert (held["state"], held["transaction"], held["remark"]) == ("held", "prepared", "why")
    assert service.asked == []
    json(client, "POST", "/v1/transactions/in-order/commit", {})
    done = json(client, "GET", "/v1/transactions/in-order/calls?wait_ms=10000")
    assert [(call["branch"], call["state"], call["attempts"]) for call in done["calls"]] == [
        ("01", "done", 1),
        ("02", "done", 1),
    ]
    assert service.asked == [("/one", "in-order", b'{"n":1}'), ("/two", "in-order", b"text")]


def test_a_call_that_fails_is_seen_with_its_error_then_parked_resumed_and_done(
    client: RawClient, service: Service
) -> None:
    service.statuses["/x"] = 500
    sent = {"gid": "parks", "calls": [{"url": f"{service.url}/x"}], "call_options": {"max_attempts": 2}}
    json(client, "POST", "/v1/messages", sent, 201)
    first = json(client, "GET", "/v1/transactions/parks/calls?wait_ms=10000")
    assert first["calls"][0]["attempts"] >= 1
    assert "500" in first["calls"][0]["last_error"]
    while json(client, "GET", "/v1/transactions/parks/calls")["state"] != "parked":
        pass
    listed = json(client, "GET", "/v1/calls?state=parked")
    assert [call["gid"] for call in listed["calls"]] == ["parks"]
    service.statuses["/x"] = 204
    json(client, "POST", "/v1/transactions/parks/calls/resume")
    while json(client, "GET", "/v1/transactions/parks/calls")["state"] != "done":
        pass
    assert json(client, "GET", "/v1/calls?state=parked")["calls"] == []


def test_calls_can_be_stopped_and_hurried(client: RawClient, service: Service) -> None:
    service.statuses["/x"] = 425
    for gid in ("stopped", "hurried"):
        sent = {"gid": gid, "calls": [{"url": f"{service.url}/x"}], "call_options": {"retry_ms": 3_600_000}}
        json(client, "POST", "/v1/messages", sent, 201)
        json(client, "GET", f"/v1/transactions/{gid}/calls?wait_ms=10000")
    assert json(client, "POST", "/v1/transactions/stopped/calls/stop")["state"] == "stopped"
    service.statuses["/x"] = 200
    json(client, "POST", "/v1/transactions/hurried/hurry")
    while json(client, "GET", "/v1/transactions/hurried/calls")["state"] != "done":
        pass
    assert [gid for _, gid, _ in service.asked].count("stopped") == 1
    assert client.json("POST", "/v1/transactions/hurried/calls/stop").status == 409
    assert client.json("POST", "/v1/transactions/nobody/calls/stop").status == 404
    assert client.json("GET", "/v1/transactions/nobody/calls").status == 404
    assert client.json("GET", "/v1/transactions/nobody/calls?wait_ms=50").status == 404


def test_call_topics_through_the_api(client: RawClient, service: Service) -> None:
    for path in ("/a", "/b"):
        body = {"url": service.url + path, "remark": path}
        json(client, "PUT", "/v1/call-topics/news/subscribers", body)
    assert client.json("PUT", "/v1/call-topics/news/subscribers", {"url": service.url + "/a"}).status == 409
    sent = {"gid": "news", "calls": [{"url": "topic://news", "body": "x"}], "call_options": {"concurrent": True}}
    json(client, "POST", "/v1/messages", sent, 201)
    done = json(client, "GET", "/v1/transactions/news/calls?wait_ms=10000")
    assert {(call["branch"], call["state"]) for call in done["calls"]} == {("01-01", "done"), ("01-02", "done")}
    assert {path for path, _, _ in service.asked} == {"/a", "/b"}
    assert client.json("DELETE", f"/v1/call-topics/news/subscribers?url={service.url}/a").status == 204
    (topic,) = json(client, "GET", "/v1/call-topics")["topics"]
    assert [one["url"] for one in topic["subscribers"]] == [f"{service.url}/b"]
    assert json(client, "GET", "/v1/call-topics/news") == topic
    assert client.json("DELETE", "/v1/call-topics/news").status == 204
    assert client.json("GET", "/v1/call-topics/news").status == 404
    hosts = json(client, "GET", "/v1/call-hosts")["hosts"]
    assert service.url in {host["name"] for host in hosts}


def test_a_commit_can_hold_its_calls_back(client: RawClient, service: Service) -> None:
    body = {"gid": "later", "group": "shop", "calls": [{"url": f"{service.url}/x"}]}
    json(client, "POST", "/v1/transactions", body, 201)
    json(client, "POST", "/v1/transactions/later/commit", {"delay_ms": 3_600_000})
    (call,) = json(client, "GET", "/v1/transactions/later/calls?wait_ms=300")["calls"]
    assert (call["state"], call.get("attempts", 0)) == ("waiting", 0)
    assert service.asked == []
