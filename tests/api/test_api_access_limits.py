"""Limits of a caller: how many requests at once, and how many bytes a second, over HTTP and gRPC."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from access_tokens import ADMIN, Token, token
from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import Answer, RawClient
from tallystick.api.access.limits import CallerTraffic
from tallystick.core.access import CallerLimits
from tallystick.core.errors import Busy
from tallystick.core.wire import ARROW

TWO = token("two-at-once", "admin", max_in_flight=2)
SLOW = token("slow", "admin", bytes_per_second=10_000)
MEGABYTE = 1_000_000
FAST = token("fast", "producer", bytes_per_second=MEGABYTE)
READER = token("reading", "reader", bytes_per_second=MEGABYTE)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(grpc=True, **known_tokens(TWO, SLOW, FAST, READER)) as broker, RawClient(broker.url) as client:
        assert client.request("PUT", "/v1/topics/quiet", b"{}", ADMIN.headers).status == 200
        yield broker
        assert "Traceback" not in broker.log_text()


def ask(broker: BrokerProcess, who: Token, path: str = "/v1/info") -> Answer:
    with RawClient(broker.url) as client:
        return client.request("GET", path, None, who.headers)


def call(broker: BrokerProcess, who: Token, body: bytes = b"") -> str:
    with grpc.insecure_channel(broker.grpc) as channel:
        metadata = [("authorization", f"Bearer {who.text}")]
        try:
            channel.unary_unary("/dtmgimp.Dtm/NewGid")(body, timeout=20, metadata=metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


def test_who_has_as_many_under_way_as_it_may_is_told_to_wait(broker: BrokerProcess) -> None:
    position = ask(broker, ADMIN, "/v1/topics?names=quiet").json()["position"]

    def poll() -> None:
        while ask(broker, TWO, f"/v1/topics?names=quiet&position={position}&wait_ms=60000").status == 429:
            pass  # the look below has met it

    polls = [threading.Thread(target=poll) for _ in range(2)]
    for one in polls:
        one.start()
    try:
        busy = eventually(lambda: (found := ask(broker, TWO)).status == 429 and found, "both polls under way")
        assert busy.headers["retry-after"] == "1"
        assert busy.problem().code == "busy"
        assert ask(broker, TWO, "/api/dtmsvr/version").status == 429
        assert call(broker, TWO) == "UNAVAILABLE"
        assert ask(broker, ADMIN).status == 200
        assert call(broker, ADMIN) == "OK"
        assert ask(broker, TWO, "/healthz").status == 200  # it counts for nobody
    finally:
        with RawClient(broker.url) as client:
            body = json.dumps({"messages": [{"topic": "quiet", "value": "now"}]})
            assert client.request("POST", "/v1/messages", body, ADMIN.headers).status == 201
        for one in polls:
            one.join()
    assert ask(broker, TWO).status == 200
    assert call(broker, TWO) == "OK"


def test_who_had_its_bytes_of_this_second_is_told_to_wait(broker: BrokerProcess) -> None:
    large = json.dumps({"messages": [{"topic": "quiet", "value": "x" * 100_000}]})
    with RawClient(broker.url) as client:
        assert client.request("POST", "/v1/messages", large, SLOW.headers).status == 201
        refused = client.request("POST", "/v1/messages", large, SLOW.headers)  # ten seconds of it are owed now
        assert (refused.status, refused.problem().code) == (429, "busy")
    assert call(broker, SLOW) == "UNAVAILABLE"
    assert ask(broker, ADMIN).status == 200


def test_bodies_that_were_all_let_in_come_no_faster_than_their_sender_may(broker: BrokerProcess) -> None:
    body = json.dumps({"messages": [{"topic": "quiet", "value": "x" * MEGABYTE}]}).encode()
    with ExitStack() as stack:
        lines = [stack.enter_context(let_in(broker, FAST, len(body))) for _ in range(4)]
        began = time.monotonic()
        with ThreadPoolExecutor(len(lines)) as pool:
            answers = list(pool.map(lambda line: answered(line, body), lines))
        took = time.monotonic() - began
    assert answers == [b"HTTP/1.1 201 Created\r\n"] * 4
    assert took > 1.5, "four megabytes, at one a second after the first, but for what is on its way at the end"


@contextmanager
def let_in(broker: BrokerProcess, who: Token, size: int) -> Iterator[socket.socket]:
    """A request that is asked for its body."""
    lines = ["POST /v1/messages HTTP/1.1", "host: 127.0.0.1", f"content-length: {size}", "expect: 100-continue"]
    lines += ["connection: close", *(f"{name}: {value}" for name, value in who.headers.items())]
    with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as line:
        line.sendall("\r\n".join((*lines, "", "")).encode())
        assert line.recv(100).startswith(b"HTTP/1.1 100 ")
        yield line


def answered(line: socket.socket, body: bytes) -> bytes:
    line.sendall(body)
    with line.makefile("rb") as answer:
        return answer.readline()


def test_an_answer_in_many_pieces_comes_no_faster_than_its_reader_may(broker: BrokerProcess) -> None:
    for _ in range(6):
        large = {"messages": [{"topic": "long", "key": "k", "value": "x" * MEGABYTE}]}
        with RawClient(broker.url) as client:
            assert client.request("POST", "/v1/messages", json.dumps(large), ADMIN.headers).status == 201
            ends = client.request("GET", "/v1/topics/long", None, ADMIN.headers).json()["ends"]
    path = f"/v1/topics/long/queues/{ends.index(6)}/messages"
    with RawClient(broker.url, timeout=120) as client:
        began = time.monotonic()
        answer = client.request("GET", path, None, {**READER.headers, "Accept": ARROW})
        took = time.monotonic() - began
    assert (answer.status, len(answer.body) > 6 * MEGABYTE) == (200, True)
    assert took > 1.5, "six megabytes in pieces of two or so, at one a second"


# --- the count itself ----------------------------------------------------------------------------------------------


def test_the_bytes_of_one_second_may_come_at_once_and_no_more() -> None:
    traffic, limits = CallerTraffic(), CallerLimits(bytes_per_second=1_000)
    traffic.enter("x", limits, 0.0)
    traffic.count(1_000, 1_000, 0.0)
    with pytest.raises(Busy, match="1000 bytes a second"):
        traffic.enter("x", limits, 0.0)
    traffic.enter("x", limits, 0.5)
    traffic.count(2_500, 1_000, 0.5)
    assert traffic.debt_seconds(1_000, 0.5) == pytest.approx(2.0, abs=0.01)
    with pytest.raises(Busy):
        traffic.enter("x", limits, 2.4)
    traffic.enter("x", limits, 2.6)
    assert traffic.debt_seconds(1_000, 1_000.0) == 0  # and what was not used is not saved up
    traffic.count(1_001, 1_000, 1_000.0)
    assert traffic.debt_seconds(1_000, 1_000.0) > 0
