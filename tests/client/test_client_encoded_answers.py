"""A proxy that compresses answers of a broker: the client asks for none of it, and names it where it comes."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from tallystick.client.connection.loop_wire import LoopWire
from tallystick.client.connection.wire import Wire
from tallystick.core.errors import BrokerUnavailable
from tallystick.link import Link

SAID = "the answer is encoded with 'gzip'"
BODY = gzip.compress(msgspec.msgpack.encode({"topics": []}))
HEADS = [
    b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY),
    b"Transfer-Encoding: chunked\r\nContent-Encoding: GZIP\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
]


class Proxy:
    """Answers every connection's first request with these bytes, and keeps the request's head."""

    def __init__(self, said: bytes) -> None:
        self._said, self.heads = said, list[bytes]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(20)
                head = b""
                while b"\r\n\r\n" not in head:
                    piece = connection.recv(65_536)
                    if not piece:
                        break
                    head += piece
                else:
                    self.heads.append(head)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + self._said)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)


@pytest.fixture(params=HEADS, ids=["length", "chunks"])
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    made = Proxy(request.param)
    yield made
    made.close()


def test_to_a_client(proxy: Proxy) -> None:
    wire = Wire(proxy.url)
    with pytest.raises(BrokerUnavailable, match=SAID):
        wire.receive(wire.send(b"\x90", 20.0))
    wire.close()
    assert b"\r\nAccept-Encoding: identity\r\n" in proxy.heads[0]


async def test_to_an_async_client(proxy: Proxy) -> None:
    wire = LoopWire(proxy.url)
    with pytest.raises(BrokerUnavailable, match=SAID):
        await wire.post(b"\x90", 20.0)
    with pytest.raises(BrokerUnavailable, match=SAID):
        await wire.request("GET", "/v1/topics", timeout=20.0)
    wire.close()
    assert all(b"\r\nAccept-Encoding: identity\r\n" in head for head in proxy.heads)


def test_to_a_command_and_to_spark(proxy: Proxy) -> None:
    with Link(proxy.url, timeout=20.0) as link:
        with pytest.raises(BrokerUnavailable, match=SAID):
            link.get("topics")
        with pytest.raises(BrokerUnavailable, match=SAID):
            link.get_bytes("application/json", "topics")
        with pytest.raises(BrokerUnavailable, match=SAID), link.arrow("topics", "t"):
            pass
    assert all(b"\r\nAccept-Encoding: identity\r\n" in head for head in proxy.heads)
