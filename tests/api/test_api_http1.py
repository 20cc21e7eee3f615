"""HTTP/1.1 as clients speak it, good and bad: over bare sockets, because a client library would hide it."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import weakref
from collections.abc import Iterator
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest

from brokers import BrokerProcess, running_broker
from eventually import eventually_equal
from raw_client import RawClient
from tallystick.api.serving.http1 import Http1Connection

LIMIT = 200_000
PREPARE = {"group": "shop", "messages": [{"topic": "orders", "value": "x"}]}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(max_request_bytes=LIMIT, max_message_bytes=LIMIT, log_level="warning") as running:
        yield running
        with RawClient(running.url) as client:
            assert client.json("GET", "/healthz").status == 200
        assert "Traceback" not in running.log_text()


class Line:
    """A connection and what came over it."""

    def __init__(self, broker: BrokerProcess) -> None:
        host, port = broker.url.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.read = self.socket.makefile("rb")

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.socket.sendall(part)

    def answer(self, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        status = int(self.read.readline().split()[1])
        headers = {}
        while (line := self.read.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name] = value.strip()
        return status, headers, self._body(status, headers, method)

    def _body(self, status: int, headers: dict[str, str], method: str) -> bytes:
        if method == "HEAD" or status < 200:
            return b""
        if headers.get("transfer-encoding") != "chunked":
            return self.read.read(int(headers.get("content-length", 0)))
        body = b""
        while size := int(self.read.readline(), 16):
            body += self.read.read(size)
            self.read.readline()
        self.read.readline()
        return body

    def ended(self) -> bool:
        return self.read.read() == b""


@pytest.fixture
def line(broker: BrokerProcess) -> Iterator[Line]:
    made = Line(broker)
    with made.socket, made.read:
        yield made


def request(method: str, path: str, body: bytes = b"", *headers: str, version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: broker", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def prepare(gid: str) -> bytes:
    return request("POST", "/v1/transactions", json.dumps({**PREPARE, "gid": gid}).encode())


def test_requests_sent_ahead_are_answered_in_their_order(line: Line) -> None:
    gids = [f"ahead-{number}" for number in range(50)]
    line.send(b"".join(prepare(gid) + request("POST", f"/v1/transactions/{gid}/commit") for gid in gids))
    for gid in gids:
        for status, state in ((201, "prepared"), (200, "committed")):
            found, _, body = line.answer()
            assert (found, json.loads(body)["gid"], json.loads(body)["state"]) == (status, gid, state)


def test_a_request_may_come_byte_by_byte(line: Line) -> None:
    line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.send(*(bytes([byte]) for byte in prepare("slow")))
    assert line.answer()[0] == 201


def test_a_body_may_come_in_chunks(line: Line) -> None:
    head = request("POST", "/v1/transactions", b"", "Transfer-Encoding: chunked")
    body = json.dumps({**PREPARE, "gid": "chunked"}).encode()
    line.send(head, *(b"1\r\n%c\r\n" % byte for byte in body), b"0\r\n\r\n")
    assert line.answer()[0] == 201
    line.send(head, b"%x\r\n" % (LIMIT + 1), b" " * (LIMIT + 1), b"\r\n0\r\n\r\n")
    assert line.answer()[0] == 413
    line.send(request("GET", "/v1/transactions/chunked"))
    assert line.answer()[0] == 200


def test_a_client_that_asks_before_it_sends_is_told(line: Line) -> None:
    whole = prepare("asked-first")
    head, _, body = whole.partition(b"\r\n\r\n")
    line.send(head, b"\r\nExpect: 100-continue\r\n\r\n")
    assert line.answer()[0] == 100
    line.send(body)
    assert line.answer()[0] == 201
    line.send(request("POST", "/v1/transactions", b"", f"Content-Length: {LIMIT + 1}", "Expect: 100-continue"))
    status, headers, _ = line.answer()
    assert (status, headers["connection"]) == (413, "close")
    assert line.ended()


def test_a_client_that_speaks_http_1_0_is_not_told_to_go_on(line: Line) -> None:
    body = json.dumps({**PREPARE, "gid": "old-client"}).encode()
    line.send(request("POST", "/v1/transactions", body, "Expect: 100-continue", version="1.0"))
    assert line.answer()[0] == 201


def test_a_parameter_is_given_once(line: Line) -> None:
    line.send(request("GET", "/v1/transactions?limit=1&state=prepared&limit=2"))
    status, _, body = line.answer()
    assert (status, json.loads(body)["detail"]) == (400, "limit: given more than once")


def test_what_is_too_large_is_refused_before_it_is_sent(line: Line) -> None:
    line.send(request("POST", "/v1/transactions", b"", f"Content-Length: {LIMIT + 1}"))
    assert line.answer()[0] == 413
    line.send(b" " * (LIMIT + 1), request("GET", "/healthz"))  # a client that sends it all the same may go on
    assert line.answer()[0] == 200


@pytest.mark.parametrize(("version", "headers"), [("1.1", ["Connection: close"]), ("1.0", [])])
def test_a_connection_ends_when_its_client_wants_it(line: Line, version: str, headers: list[str]) -> None:
    line.send(request("GET", "/healthz", b"", *headers, version=version) + request("GET", "/healthz"))
    status, told, _ = line.answer()
    assert (status, told["connection"]) == (200, "close")
    assert line.ended()


def test_a_head_is_told_without_its_body(line: Line) -> None:
    line.send(request("HEAD", "/healthz") + request("GET", "/healthz"))
    status, headers, _ = line.answer("HEAD")
    assert status == 200
    assert line.answer()[2] == b'{"status":"ok"}'
    assert int(headers["content-length"]) == len(b'{"status":"ok"}')
    line.send(request("PUT", "/healthz"))
    status, headers, _ = line.answer()
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_an_upgrade_that_there_is_not_is_passed_over(line: Line) -> None:
    wishes = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
    for _ in range(2):
        line.send(request("GET", "/healthz", b"", *wishes))
        assert line.answer()[0] == 200


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n",
        request("POST", "/v1/transactions", b"{}", "Content-Encoding: gzip"),
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        request("POST", "/v1/batch", b"", "Content-Length: 5", "Transfer-Encoding: chunked"),
        request("POST", "/v1/batch", b"", "Transfer-Encoding: chunked") + b"xyz\r\n",
    ],
    ids=["TLS", "version", "version 2", "encoding", "path", "smuggled", "chunk"],
)
@pytest.mark.parametrize("before", [0, 3])
def test_what_is_no_request_ends_the_connection(line: Line, rubbish: bytes, before: int) -> None:
    """But first it is told, and what was asked before is answered."""
    line.send(request("GET", "/healthz") * before + rubbish)
    for _ in range(before):
        assert line.answer()[0] == 200
    if not before:
        status, headers, body = line.answer()
        assert (status, headers["content-type"], headers["connection"]) == (400, "application/problem+json", "close")
        assert json.loads(body)["code"] == "invalid_request"
    assert line.ended()


def test_a_head_without_an_end_is_not_read_for_ever(line: Line) -> None:
    line.send(b"GET / HTTP/1.1\r\n")
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        line.send(*repeat(b"X: y\r\n" * 1_000, 100_000))


@pytest.mark.parametrize("sent", [b"", b'{"delay_ms": 0'])
def test_a_client_that_goes_away_before_its_body_has_asked_for_nothing(
    broker: BrokerProcess, line: Line, sent: bytes
) -> None:
    gid = f"cut-off-{len(sent)}"
    line.send(prepare(gid))
    assert line.answer()[0] == 201
    with RawClient(broker.url) as client:
        before = refused_commits(client)
        line.send(request("POST", f"/v1/transactions/{gid}/commit", b"", "Content-Length: 100"), sent)
        line.read.close()
        line.socket.close()
        eventually_equal(lambda: refused_commits(client), before + 1)
        assert client.json("GET", f"/v1/transactions/{gid}").json()["state"] == "prepared"


def refused_commits(client: RawClient) -> float:
    counted = 'tallystick_http_requests_total{route="/v1/transactions/{gid}/commit",status="400"} '
    lines = client.request("GET", "/metrics").body.decode().splitlines()
    return sum(float(line.removeprefix(counted)) for line in lines if line.startswith(counted))


async def test_an_answered_exchange_needs_no_garbage_collection() -> None:
    exchanges: list[weakref.ref[Any]] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        exchanges.append(weakref.ref(scope["client_gone"].__self__))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    connected = SimpleNamespace(connections=set(), tasks=set())
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http1Connection(answer, connected), "127.0.0.1", 0)
    gc.disable()
    try:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b" 204 " in await reader.readuntil(b"\r\n\r\n")
        while connected.tasks:
            await asyncio.sleep(0)
        assert [exchange() for exchange in exchanges] == [None, None]
    finally:
        gc.enable()
        writer.close()
        await writer.wait_closed()
        server.close()
