"""Topics over gRPC: dtm's topic_test.go, and branches that go to every subscriber, over gRPC and HTTP alike."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from brokers import BrokerProcess, running_broker
from busi_grpc import Busi, busi_service
from dtm_grpc import GrpcClient, Refused

ONE, TWO = "http://127.0.0.1:8081/test1", "127.0.0.1:8081/busi.Busi/Test2"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(grpc=True) as running:
        yield running


@pytest.fixture(scope="module")
def busi() -> Iterator[Busi]:
    with busi_service() as running:
        yield running


@pytest.fixture
def dtm(broker: BrokerProcess) -> Iterator[GrpcClient]:
    with GrpcClient(broker) as client:
        yield client


def refused(dtm: GrpcClient, act: str, *given: str) -> str:
    with pytest.raises(Refused) as error:
        getattr(dtm, act)(*given)
    assert error.value.code == "UNKNOWN"
    return error.value.text


def urls_of(dtm: GrpcClient, topic: str) -> list[str]:
    found = dtm.get("queryKV", cat="topics", key=topic)["kv"]
    return [one["url"] for one in json.loads(found[0]["v"])] if found else []


# --- dtm's topic_test.go ----------------------------------------------------------------------------------------


def test_normal(dtm: GrpcClient) -> None:
    dtm.subscribe("topic", ONE)
    assert refused(dtm, "subscribe", "topic", ONE) == "this url exists"
    assert refused(dtm, "subscribe", "", ONE) == "empty topic"
    assert refused(dtm, "subscribe", "topic", "") == "empty url"
    dtm.subscribe("topic", TWO)
    assert urls_of(dtm, "topic") == [ONE, TWO]
    dtm.unsubscribe("topic", ONE)
    assert refused(dtm, "unsubscribe", "topic", ONE) == "no such an url "
    assert refused(dtm, "unsubscribe", "", ONE) == "empty topic"
    assert refused(dtm, "unsubscribe", "topic", "") == "empty url"
    assert refused(dtm, "unsubscribe", "never-made", ONE) == "no such a topic"
    dtm.unsubscribe("topic", TWO)
    assert refused(dtm, "unsubscribe", "topic", TWO) == "this topic is empty"
    assert refused(dtm, "delete_topic", "never-made") == "storage: NotFound"
    dtm.delete_topic("topic")
    assert urls_of(dtm, "topic") == []


def test_concurrent_changes_all_count(dtm: GrpcClient) -> None:
    """dtm lets some of them fail; here none does."""
    urls = [f"127.0.0.1:{port}/busi.Busi/In" for port in range(9000, 9020)]
    errors: list[Refused] = []

    def change(act: str, url: str) -> None:
        try:
            getattr(dtm, act)("concurrent", url)
        except Refused as error:
            errors.append(error)

    for act in ("subscribe", "unsubscribe"):
        threads = [threading.Thread(target=change, args=(act, url)) for url in urls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert set(urls_of(dtm, "concurrent")) == (set(urls) if act == "subscribe" else set())
    assert dtm.get("queryKV", cat="topics", key="concurrent")["kv"][0]["version"] == 2 * len(urls)


def test_urls_that_the_broker_may_not_call_are_not_subscribed(dtm: GrpcClient) -> None:
    assert "may not call" in refused(dtm, "subscribe", "topic", "10.1.2.3:80/s/m")
    assert refused(dtm, "subscribe", "topic", "127.0.0.1:80") == "bad url: '127.0.0.1:80'. no '/' found"


# --- branches to topics -----------------------------------------------------------------------------------------


def test_every_subscriber_is_called_with_the_same_payload(dtm: GrpcClient, busi: Busi) -> None:
    dtm.subscribe("both", busi.url("TransOut"))
    dtm.subscribe("both", busi.url("TransIn"))
    dtm.subscribe("alone", busi.url("Single"))
    gid = dtm.new_gid()
    dtm.submit(gid, [("topic://both", b"30"), ("topic://alone", b"31")], WaitResult=True)
    called = [(one.method, one.branch, one.body) for one in busi.calls(gid)]
    assert called == [("TransOut", "01-01", b"30"), ("TransIn", "01-02", b"30"), ("Single", "02", b"31")]
    assert dtm.status(gid) == "succeed"


def test_a_change_counts_at_once_and_what_was_prepared_before_keeps_its_subscribers(
    dtm: GrpcClient, busi: Busi
) -> None:
    dtm.subscribe("moving", busi.url("Before"))
    prepared, later = dtm.new_gid(), dtm.new_gid()
    steps = [("topic://moving", b"x")]
    dtm.prepare(prepared, steps, busi.url("CanSubmit"))
    dtm.delete_topic("moving")
    assert "topic not found" in refused(dtm, "submit", dtm.new_gid(), steps)  # type: ignore[arg-type]
    dtm.subscribe("moving", busi.url("After"))
    dtm.submit(prepared, steps, busi.url("CanSubmit"), WaitResult=True)
    dtm.submit(later, steps, WaitResult=True)
    assert [one.method for one in busi.calls(prepared) + busi.calls(later)] == ["Before", "After"]


def test_http_and_grpc_branches_in_one_transaction(dtm: GrpcClient, busi: Busi) -> None:
    received: list[tuple[str, dict[str, list[str]], bytes]] = []

    class Web(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            place = urlsplit(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((place.path, parse_qs(place.query), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            gid = dtm.new_gid()
            url = f"http://127.0.0.1:{web.server_port}"
            dtm.subscribe("mixed", f"{url}/topic")
            dtm.subscribe("mixed", busi.url("TransOut"))
            steps = [(f"{url}/in", b"\x00\xff"), (busi.url("TransIn"), b"\x01\xfe"), ("topic://mixed", b"\x02\xfd")]
            dtm.submit(gid, steps, WaitResult=True)
        finally:
            web.shutdown()
            thread.join()
    query = {"gid": [gid], "trans_type": ["msg"], "op": ["action"]}
    assert received == [
        ("/in", {**query, "branch_id": ["01"]}, b"\x00\xff"),
        ("/topic", {**query, "branch_id": ["03-01"]}, b"\x02\xfd"),
    ]
    called = [(one.method, one.branch, one.body) for one in busi.calls(gid)]
    assert called == [("TransIn", "02", b"\x01\xfe"), ("TransOut", "03-02", b"\x02\xfd")]
