"""Requests that two readers could take for different ones: refused, and nothing behind them is read."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from brokers import BrokerProcess, running_broker

HIDDEN = b"PUT /v1/topics/smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
LINE = b"POST /v1/messages HTTP/1.1\r\n"
TWOFOLD = {
    "length, then chunks": LINE + b"Host: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks, then length": LINE + b"Host: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": LINE + b"Host: x\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
    "the same length twice": LINE + b"Host: x\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "a list of lengths": LINE + b"Host: x\r\nContent-Length: 0, 0\r\n\r\n",
    "a length with a sign": LINE + b"Host: x\r\nContent-Length: +0\r\n\r\n",
    "a header on two lines": LINE + b"Host: x\r\nX-Folded: a\r\n Content-Length: 5\r\nContent-Length: 0\r\n\r\n",
    "lines that end too early": LINE.replace(b"\r", b"") + b"Host: x\nContent-Length: 0\n\n",
    "one line that ends too early": LINE + b"Host: x\nContent-Length: 0\r\n\r\n",
    "a return within a header": LINE + b"Host: x\rContent-Length: 5\r\nContent-Length: 0\r\n\r\n",
    "a space before the colon": LINE + b"Host: x\r\nTransfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n",
    "chunks, and something else": LINE + b"Host: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "something like chunks": LINE + b"Host: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a zero byte": LINE + b"Host: x\r\nX-Zero: a\0b\r\nContent-Length: 0\r\n\r\n",
    "a size of another base": LINE + b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
    "no host": LINE + b"Content-Length: 0\r\n\r\n",
    "two hosts": LINE + b"Host: x\r\nHost: y\r\nContent-Length: 0\r\n\r\n",
    "a tunnel": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker() as running:
        yield running


def exchange(broker: BrokerProcess, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as connection:
        connection.sendall(sent)
        back = b""
        try:
            while more := connection.recv(65536):
                back += more
        except ConnectionResetError:
            pass  # what was not read any more makes the end a hard one
    return back


@pytest.mark.parametrize("twofold", TWOFOLD.values(), ids=TWOFOLD)
def test_what_can_be_read_in_two_ways_is_refused_and_so_is_what_follows(broker: BrokerProcess, twofold: bytes) -> None:
    back = exchange(broker, twofold + HIDDEN)
    assert back.count(b"HTTP/1.1 ") == 1
    assert back.startswith(b"HTTP/1.1 400 ")
    assert broker.get("/v1/topics/smuggled") == 404


def test_a_request_that_can_be_read_in_one_way_lets_the_next_one_follow() -> None:
    """The control: the same hidden request is carried out behind a good one."""
    with running_broker() as broker:
        assert exchange(broker, LINE + b"Host: x\r\nContent-Length: 0\r\n\r\n" + HIDDEN).count(b"HTTP/1.1 ") == 2
        assert broker.get("/v1/topics/smuggled") == 200


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET http://other/healthz HTTP/1.1", b"200"),
        (b"GET http://u:p@other:1/%68ealthz HTTP/1.1", b"200"),
        (b"GET http://other HTTP/1.1", b"404"),
        (b"GET //healthz HTTP/1.1", b"404"),
        (b"OPTIONS * HTTP/1.1", b"404"),
    ],
)
def test_an_address_in_its_absolute_form_is_taken_apart(broker: BrokerProcess, line: bytes, status: bytes) -> None:
    back = exchange(broker, line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert back.startswith(b"HTTP/1.1 " + status)


def test_http_1_0_needs_no_host(broker: BrokerProcess) -> None:
    assert exchange(broker, b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("count", "status"), [(250, b"200"), (256, b"413")])
def test_there_is_a_most_of_headers(broker: BrokerProcess, count: int, status: bytes) -> None:
    many = b"".join(b"X-%d: 1\r\n" % number for number in range(count))
    back = exchange(broker, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + many + b"\r\n")
    assert back.startswith(b"HTTP/1.1 " + status)
