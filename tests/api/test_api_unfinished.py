"""Requests whose end does not come: they have a share of the broker's memory together, and each has a time."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import RawClient
from tallystick.api.serving.asgi import UnfinishedBodies
from tallystick.core.errors import Busy

ROOM = """
import tallystick.api.serving.asgi as asgi

asgi.UnfinishedBodies.MAX_BYTES = 1_000_000
"""
FAST = """
import tallystick.api.serving.http1 as http1

http1.MIN_BODY_RATE = 200_000
"""
SLOW = """
import tallystick.api.serving.http1 as http1

http1.MIN_BODY_RATE = 1
"""
HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n\r\n"


def begun(broker: BrokerProcess, size: int, head: bytes = HEAD) -> socket.socket:
    """A request of which only so many bytes are sent."""
    host, port = broker.url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), timeout=30)
    made.sendall(head + b" " * size)
    return made


def ended(connection: socket.socket) -> bool:
    """Waits for the other side to end it; whether it did so without a word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def large(client: RawClient) -> int:
    """The status of a request that is not small, and has no messages."""
    return client.request("POST", "/v1/messages", b"{" + b" " * 500_000, {"Content-Type": "application/json"}).status


def test_unfinished_requests_have_room_for_so_much_and_give_it_back() -> None:
    bodies = UnfinishedBodies()
    most, small = bodies.MAX_BYTES, bodies.SMALL_BYTES
    assert bodies.grow(0, small) == 0
    held = bodies.grow(0, most - small - 1)
    assert bodies.grow(0, small) == 0  # never counted
    with pytest.raises(Busy):
        bodies.grow(0, small + 2)
    other = bodies.grow(0, small + 1)
    bodies.end(held)
    bodies.end(other)
    assert bodies.grow(0, most) == most


def test_many_that_are_never_finished_are_refused_and_others_are_heard() -> None:
    with running_broker(prelude=ROOM) as broker, RawClient(broker.url) as client, ExitStack() as stack:
        assert large(client) == 400  # it is read, and is no JSON
        # There is room for two of them, whichever these are; the third one's answer tells that it is taken.
        held = [stack.enter_context(begun(broker, 400_000)) for _ in range(3)]
        (refused,) = select.select(held, [], [], 120)[0]
        assert refused.recv(1_000).startswith(b"HTTP/1.1 429 ")
        assert large(client) == 429
        small = {"messages": [{"topic": "heard", "value": "1"}]}
        assert client.json("POST", "/v1/messages", small).status == 201
        for one in held:
            one.close()
        eventually(lambda: large(client) == 400, "the room is given back")


def test_one_that_stops_in_the_middle_is_cut_off() -> None:
    with running_broker(body_timeout="1s", idle_timeout="1s") as broker, begun(broker, 10) as stopped:
        assert ended(stopped)
        assert "the rest of its request has not come" in broker.log_text()
        with RawClient(broker.url) as client:
            asked = {"topic": "quiet", "wait_ms": 3_000}
            assert client.json("POST", "/v1/groups/g/receive", asked).status == 200  # who waits is not cut off


def drip(connection: socket.socket, stop: threading.Event, counted: list[int]) -> None:
    """A byte now and then, so that it is never silent; until the other side ends it."""
    while not stop.wait(0.05):
        try:
            counted[0] += connection.send(b" ")
        except OSError:
            return


def test_those_that_drip_give_their_share_back_though_they_are_never_silent() -> None:
    stop, counted = threading.Event(), [0]
    settings = {"prelude": ROOM + FAST, "body_timeout": "1s"}
    with running_broker(**settings) as broker, RawClient(broker.url) as client, ExitStack() as stack:
        held = [stack.enter_context(begun(broker, 400_000)) for _ in range(2)]
        dripping = [threading.Thread(target=drip, args=(one, stop, counted)) for one in held]
        for one in dripping:
            one.start()
        try:
            eventually(lambda: large(client) == 429, "they hold all the room there is")
            eventually(lambda: large(client) == 400, "they are cut off, and the room is given back")
            assert counted[0] > 10
        finally:
            stop.set()
            for one in dripping:
                one.join()
        assert all(map(ended, held))
        assert metric(client, 'tallystick_connections_cut_total{why="body"}') == 2


def test_one_that_is_slow_but_goes_on_is_heard_out() -> None:
    body = b'{"messages": [{"topic": "slow", "value": "1"}]}'
    head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with running_broker(body_timeout="3s", prelude=SLOW) as broker, begun(broker, 0, head) as slow:
        for byte in body:
            slow.sendall(bytes((byte,)))
            time.sleep(0.1)  # for longer than the time that a body may be silent
        assert slow.recv(1_000).startswith(b"HTTP/1.1 201 ")


def metric(client: RawClient, name: str) -> float:
    lines = client.request("GET", "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])
