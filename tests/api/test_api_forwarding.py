"""Requests handed on to the broker that they belong to: nobody notices the hop, unless it fails."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from brokers import BrokerProcess
from eventually import eventually
from raw_client import Gone, RawClient
from tallystick.api.serving.asgi import Receive, Scope, Send, answer_raw
from tallystick.api.serving.forwarding import CALLER, FORWARDED, Forwarder
from tallystick.api.serving.http1 import Http1Connection
from tallystick.api.serving.problems import problem_of
from tallystick.core.addresses import broker_address
from tallystick.core.errors import BrokerUnavailable
from tallystick.core.wire import ARROW, PROBLEM
from tallystick.link import Link


class Front:
    """A broker that owns nothing: it hands on everything."""

    def __init__(self, to: str) -> None:
        self._to = broker_address(to)
        self.connections: set[Any] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._start())

    async def _start(self) -> None:
        self._forwarder = Forwarder("front")
        made: Callable[[], Http1Connection] = lambda: Http1Connection(self._answer, self)  # noqa: E731
        self._listening = await self._loop.create_server(made, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._forwarder.forward(scope, receive, send, self._to, scope["raw_path"])
        except BrokerUnavailable as error:
            status, body, headers = problem_of(error)
            await answer_raw(send, status, PROBLEM, body, headers)

    def lines(self) -> tuple[int, int]:
        """Connections to the other broker: in use, idle."""
        return len(self._forwarder._in_use), sum(map(len, self._forwarder._idle.values()))

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._listening.close()
        self._forwarder.close()
        await self._listening.wait_closed()
        for connection in list(self.connections):
            connection.abort()
        while self.tasks:
            await asyncio.wait(self.tasks)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@contextmanager
def front_of(url: str) -> Iterator[Front]:
    front = Front(url)
    try:
        yield front
    finally:
        front.close()


@pytest.fixture(scope="module")
def front(broker: BrokerProcess) -> Iterator[Front]:
    with front_of(broker.url) as made:
        yield made


@pytest.fixture
def through(front: Front) -> Iterator[RawClient]:
    with RawClient(front.url) as made:
        yield made


def test_a_transaction_through_another_broker_is_the_same(through: RawClient, client: RawClient) -> None:
    asked = {
        "gid": "hop-1",
        "group": "shop",
        "messages": [{"topic": "hops", "value": "1"}],
        "check": {"after_ms": 60_000},
    }
    assert through.json("POST", "/v1/transactions", asked).status == 201
    assert client.json("GET", "/v1/transactions/hop-1").json()["state"] == "prepared"
    assert through.json("POST", "/v1/transactions/hop-1/commit").json()["state"] == "committed"
    again = through.json("POST", "/v1/transactions/hop-1/rollback")
    assert (again.status, again.problem().code) == (409, "outcome_conflict")
    assert again.body == client.json("POST", "/v1/transactions/hop-1/rollback").body


def test_paths_queries_and_headers_arrive_as_they_were(through: RawClient, client: RawClient) -> None:
    for path in ("/v1/topics?wait_ms=0", "/v1/topics/no%2Fsuch", "/nothing?a=%20b", "/v1/topics?limt=1", "/metrics"):
        there, here = client.request("GET", path), through.request("GET", path)
        assert (here.status, here.headers.get("content-type")) == (there.status, there.headers.get("content-type"))
    assert through.request("PUT", "/healthz").headers["allow"] == client.request("PUT", "/healthz").headers["allow"]


def test_an_answer_without_a_body_ends(through: RawClient) -> None:
    head = through.request("HEAD", "/v1/info")
    assert (head.status, head.body) == (200, b"")
    assert through.json("PUT", "/v1/topics/gone", {"queues": 1}).status in (200, 201)
    assert through.request("DELETE", "/v1/topics/gone").status == 204
    assert through.request("GET", "/healthz").status == 200  # over the same connection


def test_a_body_in_pieces_and_a_large_stream_of_arrow(front: Front, through: RawClient) -> None:
    rows, value = 8_000, b"x" * 1_024
    table = pa.table({"topic": pa.repeat("large", rows), "value": pa.array([value] * rows, pa.binary())})
    made = io.BytesIO()
    with pa.ipc.new_stream(made, table.schema) as writer:
        writer.write_table(table, max_chunksize=4_000)
    sent = made.getvalue()
    pieces = (sent[at : at + 100_000] for at in range(0, len(sent), 100_000))
    prepared = through.request("POST", "/v1/parts/p1?index=0", pieces, {"Content-Type": ARROW})
    assert prepared.status == 201, prepared.body
    commit = {"parts": [{"part": "p1", "count": rows}]}
    assert through.json("POST", "/v1/transactions/large-1/commit", commit).status == 200
    read = 0
    with Link(front.url) as link:
        for queue, end in enumerate(link.get("topics", "large")["ends"]):
            with link.arrow("topics", "large", "queues", str(queue), "messages", offset=0, end=end) as answer:
                read += sum(batch.num_rows for batch in pa.ipc.open_stream(answer))
    assert read == rows


def test_connections_are_used_again(front: Front, through: RawClient) -> None:
    for _ in range(20):
        assert through.request("GET", "/healthz").status == 200
    eventually(lambda: front.lines()[0] == 0, "nothing under way")
    assert front.lines()[1] <= 2


def test_a_caller_that_leaves_a_long_poll_is_gone_for_both(front: Front, through: RawClient, client: RawClient) -> None:
    client.json("PUT", "/v1/topics/polled", {"queues": 1})
    with socket.create_connection(("127.0.0.1", int(front.url.rpartition(":")[2]))) as raw:
        asked = json.dumps({"topic": "polled", "wait_ms": 60_000}).encode()
        head = b"POST /v1/groups/leavers/receive HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw.sendall(head + b"content-length: %d\r\n\r\n" % len(asked) + asked)
        eventually(lambda: front.lines()[0] == 1, "the poll is handed on")
    eventually(lambda: front.lines()[0] == 0, "the poll is given up")
    client.json("POST", "/v1/messages", {"messages": [{"topic": "polled", "value": "1"}]})
    found = through.json("POST", "/v1/groups/leavers/receive", {"topic": "polled", "wait_ms": 10_000}).json()
    assert [one["message"]["value"] for one in found["deliveries"]] == ["1"]  # it was not lent to the one who left


def test_a_refusal_that_comes_before_the_end_of_the_body_is_handed_back(front: Front) -> None:
    with RawClient(front.url) as alone:
        answer = alone.request("POST", "/v1/batch", b"", {"Content-Length": str(1 << 40)})
    assert (answer.status, answer.problem().code) == (413, "too_large")


# --- another broker that is away, or dies -----------------------------------------------------------------------------


@contextmanager
def upstream(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Something that takes one connection and does with it what a test says."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as taken:
                behave(taken)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(30)


def test_a_broker_that_is_not_there_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = f"http://127.0.0.1:{reserved.getsockname()[1]}"
    with front_of(address) as front, RawClient(front.url) as client:
        answer = client.request("GET", "/v1/info")
    assert (answer.status, answer.problem().code) == (503, "unreachable")
    assert "cannot be reached" in answer.problem().detail
    assert answer.headers["retry-after"] == "1"


def test_a_broker_that_dies_before_its_answer_may_have_acted() -> None:
    def read(taken: socket.socket) -> None:
        taken.recv(65_536)

    with upstream(read) as address, front_of(address) as front, RawClient(front.url) as client:
        answer = client.json("POST", "/v1/messages", {"messages": []})
    assert (answer.status, answer.problem().code) == (503, "unavailable")
    assert "may have acted" in answer.problem().detail


def test_a_broker_that_dies_in_its_answer_leaves_no_whole_one() -> None:
    def half(taken: socket.socket) -> None:
        taken.recv(65_536)
        taken.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 40)

    with upstream(half) as address, front_of(address) as front, RawClient(front.url) as client, pytest.raises(Gone):
        client.request("GET", "/v1/info")


def test_what_is_handed_on_says_by_whom_and_keeps_nothing_of_the_hop() -> None:
    seen: list[bytes] = []

    def answer(taken: socket.socket) -> None:
        seen.append(taken.recv(65_536))
        taken.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nx-own: 1\r\nkeep-alive: 9\r\n\r\n")

    with upstream(answer) as address, front_of(address) as front, RawClient(front.url) as client:
        of_the_hop = {"TE": "trailers", "Upgrade": "h2c", "Tallystick-Caller": "me"}
        got = client.request("GET", "/a%20b?c=d", headers={"X-Mine": "1", **of_the_hop})
    assert (got.status, got.headers["x-own"], "keep-alive" in got.headers) == (204, "1", False)
    lines = seen[0].lower().split(b"\r\n")
    assert lines[0] == b"get /a%20b?c=d http/1.1"
    assert b"x-mine: 1" in lines
    assert FORWARDED + b": front" in lines
    assert not [line for line in lines if line.startswith((b"te:", b"upgrade:", b"connection:", CALLER))]
