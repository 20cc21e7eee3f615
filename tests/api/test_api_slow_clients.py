"""Clients that take their time, or too many places: heads that do not come, connections nobody uses, crowds."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import RawClient
from tallystick.api.serving.crowd import Crowd
from tallystick.api.serving.http1 import ClientPatience, Http1Connection
from tallystick.core.errors import BrokerUnavailable, Busy

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


def connected(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=30)


def ended(connection: socket.socket) -> bool:
    """Waits for the other side to end it; whether it did so without a word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def metrics(client: RawClient) -> dict[str, float]:
    lines = client.request("GET", "/metrics").body.decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[:1] not in "#"}


@contextmanager
def dripping(connection: socket.socket, piece: bytes) -> Iterator[list[int]]:
    """Sends the piece again and again until the other side ends the connection; how often, is counted."""
    stop, sent = threading.Event(), [0]

    def drip() -> None:
        while not stop.wait(0.02):
            try:
                sent[0] += bool(connection.send(piece))
            except OSError:
                return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


def test_a_head_that_drips_is_cut_off() -> None:
    with running_broker(head_timeout="1s") as broker, connected(broker) as slow, RawClient(broker.url) as client:
        slow.sendall(HEAD)
        with dripping(slow, b"X-More: 1\r\n") as sent:
            assert ended(slow)
        assert sent[0] > 5
        assert metrics(client)['tallystick_connections_cut_total{why="head"}'] == 1
        assert "the head of its request has not come" in broker.log_text()


def test_a_second_head_that_drips_is_cut_off_too() -> None:
    with running_broker(head_timeout="1s") as broker, connected(broker) as slow:
        slow.sendall(HEAD + b"\r\n")
        assert slow.recv(1_000).startswith(b"HTTP/1.1 200 ")
        slow.sendall(HEAD)
        with dripping(slow, b"X-More: 1\r\n"):
            assert ended(slow)


def test_a_connection_that_says_nothing_is_cut_off() -> None:
    with running_broker(head_timeout="300ms") as broker, connected(broker) as silent:
        assert ended(silent)


@pytest.mark.parametrize("piece", [b"", b"\r\n"], ids=["nothing", "empty lines"])
def test_a_connection_that_nobody_uses_is_closed(piece: bytes) -> None:
    with running_broker(idle_timeout="1s") as broker, connected(broker) as idle:
        idle.sendall(HEAD + b"\r\n")
        assert idle.recv(1_000).startswith(b"HTTP/1.1 200 ")
        with dripping(idle, piece):
            assert ended(idle)


def test_who_waits_for_an_answer_is_not_slow() -> None:
    limits = dict.fromkeys(("head_timeout", "body_timeout", "idle_timeout"), "300ms")
    with running_broker(**limits) as broker, RawClient(broker.url) as client:
        asked = {"topic": "quiet", "wait_ms": 2_000}
        assert client.json("POST", "/v1/groups/g/receive", asked).status == 200


def test_too_many_connections_of_one_address_are_told_so() -> None:
    with running_broker(max_connections_per_address=5) as broker, ExitStack() as stack:
        eventually(lambda: broker.get("/healthz") == 200, "no other connection of the tests is left")
        with RawClient(broker.url) as client:
            eventually(lambda: metrics(client)["tallystick_connections"] == 1, "no other connection is left")
            held = [stack.enter_context(connected(broker)) for _ in range(4)]
            eventually(lambda: metrics(client)["tallystick_connections"] == 5, "all are there")
            with connected(broker) as refused:
                said = refused.recv(10_000)
            assert said.startswith(b"HTTP/1.1 429 ")
            assert b'"code":"busy"' in said
            assert b"max_connections_per_address" in said
            assert metrics(client)['tallystick_connections_refused_total{why="address"}'] >= 1
            held[0].close()
            eventually(lambda: broker.get("/healthz") == 200, "a place is free again")


def test_too_many_connections_of_all_are_told_so() -> None:
    with running_broker(max_connections=3) as broker, RawClient(broker.url) as client, ExitStack() as stack:
        eventually(lambda: metrics(client)["tallystick_connections"] == 1, "no other connection of the tests is left")
        for _ in range(2):
            stack.enter_context(connected(broker))
        eventually(lambda: metrics(client)["tallystick_connections"] == 3, "all are there")
        with connected(broker) as refused:
            assert refused.recv(10_000).startswith(b"HTTP/1.1 503 ")
        assert metrics(client)['tallystick_connections_refused_total{why="all"}'] == 1


def test_a_thousand_idle_connections_do_not_keep_a_new_one_out() -> None:
    with running_broker() as broker, ExitStack() as stack, RawClient(broker.url) as client:
        for _ in range(1_000):
            stack.enter_context(connected(broker))
        eventually(lambda: metrics(client)["tallystick_connections"] >= 1_001, "all are there")
        with RawClient(broker.url) as another:
            assert another.request("GET", "/healthz").status == 200


def test_the_crowd_counts_by_address_and_by_network() -> None:
    crowd = Crowd(most=4, most_of_one=2)
    places = [crowd.enter(address) for address in ("10.0.0.1", "10.0.0.1", "2001:db8::1")]
    assert isinstance(crowd.refusal("10.0.0.1"), Busy)
    assert crowd.refusal("10.0.0.2") is None
    assert crowd.refusal("2001:db8::ffff") is None
    places.append(crowd.enter("2001:db8::ffff"))
    assert isinstance(crowd.refusal("10.0.0.2"), BrokerUnavailable)
    for _ in range(2):  # once counts
        places[0].leave()
    assert isinstance(crowd.refusal("2001:db8:0:0:1::%eth0"), Busy)
    assert crowd.refusal("2001:db8:0:1::1") is None
    assert crowd.refusal("10.0.0.1") is None


class Ending(asyncio.Transport):
    """A connection that is to end once its client has read the rest."""

    def __init__(self, unread: int, reads: int) -> None:
        super().__init__()
        self._unread, self._reads = unread, reads
        self.cut = False

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        self._unread -= self._reads
        return self._unread

    def abort(self) -> None:
        self.cut = True


class Nowhere:
    def __init__(self) -> None:
        self.connections: set[Any] = set()
        self.tasks: set[asyncio.Task[Any]] = set()


async def nothing(*_: object) -> None:
    """An application that is never asked."""


async def test_the_end_of_an_answer_may_be_read_slowly_but_not_never() -> None:
    patience = ClientPatience(0.05, 0.05, 0.05)
    slow, silent = Ending(1_000_000, reads=1), Ending(1_000_000, reads=0)
    connections = [Http1Connection(nothing, Nowhere(), patience) for _ in range(2)]
    for connection, transport in zip(connections, (slow, silent), strict=True):
        connection.connection_made(transport)
    while not silent.cut:
        await asyncio.sleep(0.01)
    assert not slow.cut
    for connection in connections:
        connection.connection_lost(None)


def test_who_was_refused_may_not_send_the_rest_of_its_body_for_ever() -> None:
    with running_broker(body_timeout="1s", **known_tokens()) as broker, connected(broker) as slow:
        slow.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 401"
        with dripping(slow, b" " * 2_000) as sent:  # a hundred times as fast as a body has to come
            while not ended(slow):
                pass  # the rest of the answer
        assert sent[0] > 5


def test_bad_connections_do_not_flood_the_log() -> None:
    with running_broker() as broker:
        for _ in range(50):
            with connected(broker) as bad:
                bad.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
                assert bad.recv(12) == b"HTTP/1.1 400"
        lines = [line for line in broker.log_text().splitlines() if "is ended: this is no HTTP request" in line]
    assert 1 <= len(lines) < 50
    assert "a connection of 127.0.0.1 is ended" in lines[0]


async def test_of_what_is_sent_ahead_few_requests_are_understood_at_once_and_all_are_answered() -> None:
    nowhere, client, waiting = Nowhere(), Reading(), asyncio.Event()
    lines: list[int] = []

    async def answer(_: Any, __: Any, send: Any) -> None:
        await waiting.wait()
        lines.append(len(connection._line))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    connection = Http1Connection(answer, nowhere, ClientPatience(60, 60, 60))
    connection.connection_made(client)
    connection.data_received((HEAD + b"\r\n") * 5_000)
    assert 1 < len(connection._line) < 100
    assert client.paused
    waiting.set()
    while nowhere.tasks:
        await asyncio.gather(*nowhere.tasks)
    assert client.written.count(b"HTTP/1.1 204") == len(lines) == 5_000
    assert max(lines) < 100
    assert not client.paused
    connection.connection_lost(None)


class Reading(asyncio.Transport):
    """A connection whose client reads whatever it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.paused = bytearray(), False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
