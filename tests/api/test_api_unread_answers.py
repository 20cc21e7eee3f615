"""Clients that ask and do not read: each has a time, and all together have a share of the broker's memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import RawClient
from tallystick.api.serving.unread_answers import PATIENCE_SECONDS, UnreadAnswers

PRELUDE = """
import tallystick.api.serving.http1 as http1

http1._unread = http1.UnreadAnswers({room}, {patience})
"""
MESSAGES = {"messages": [{"topic": "large", "value": "x" * 900_000} for _ in range(4)]}
FETCH = b"GET /v1/topics/large/queues/0/messages?offset=0&max_bytes=8000000 HTTP/1.1\r\nHost: x\r\n\r\n"


class _Client(asyncio.Transport):
    """A transport whose other side reads as much as the test says."""

    def __init__(self, unread: int) -> None:
        self.unread, self.cut = unread, False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.cut = True


def test_whoever_has_read_nothing_for_longest_makes_room() -> None:
    answers = UnreadAnswers(max_bytes=100)
    clients = [_Client(40), _Client(40), _Client(40), _Client(101)]
    answers.add(clients[0], 1.0)
    answers.add(clients[1], 2.0)
    answers.add(clients[0], 3.0)  # it has read in between
    answers.add(clients[2], 4.0)
    assert [client.cut for client in clients] == [False, True, False, False]
    answers.remove(clients[0])
    answers.add(clients[3], 5.0)
    assert [client.cut for client in clients] == [False, True, True, True]


def test_a_client_that_reads_slowly_is_not_one_that_reads_nothing() -> None:
    answers = UnreadAnswers()
    slow, silent = _Client(1_000), _Client(1_000)
    for client in (slow, silent):
        answers.add(client, 0.0)
    for turn in range(1, 100):
        slow.unread -= 1
        for client in (slow, silent):
            answers.look_at(client, turn * PATIENCE_SECONDS * 0.9)
    assert (slow.cut, silent.cut) == (False, True)


@pytest.fixture(params=[(1.0, 1 << 30), (3600.0, 60_000)], ids=["time", "room"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    patience, room = request.param
    prelude = PRELUDE.format(patience=patience, room=room)
    with running_broker(prelude=prelude) as running:
        yield running


def test_a_client_that_does_not_read_is_cut_off_and_the_others_are_served(broker: BrokerProcess) -> None:
    host, port = broker.url.removeprefix("http://").split(":")
    with RawClient(broker.url) as client:
        client.json("PUT", "/v1/topics/large", {"queues": 1})
        assert client.json("POST", "/v1/messages", MESSAGES).status == 201
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            silent.connect((host, int(port)))
            silent.sendall(FETCH * 4)  # more than the kernel keeps for those who do not read
            eventually(lambda: "cut off" in broker.log_text(), "the client that does not read is cut off")
        assert client.json("GET", "/healthz").status == 200
