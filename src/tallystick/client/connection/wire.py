"""HTTP to one broker from threads: a socket that blocks, kept open, one request at a time.

A thread that sends by itself waits for nobody's event loop. What a general client does for each request would be paid
under Python's lock, by all threads together: here it is one write, one read and a parser in C.
"""

from __future__ import annotations

import select
import socket
import ssl
import time

import httptools
from yarl import URL

from tallystick.client.connection.transport import (
    CONNECT_SECONDS,
    IDLE_SECONDS,
    BrokerUnreachable,
    refusal,
)
from tallystick.core.errors import BrokerUnavailable
from tallystick.core.wire import MSGPACK

RECEIVE_BYTES = 256 * 1024


class Wire:
    """A connection to one broker, made when it is needed. Belongs to whoever uses it at the time."""

    def __init__(self, address: str) -> None:
        url = URL(f"{address}/v1/batch")
        self.address = address
        self._place = (url.host or "", url.port or 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._head = (
            f"POST {url.raw_path} HTTP/1.1\r\nHost: {url.authority}\r\n"
            f"Content-Type: {MSGPACK}\r\nAccept: {MSGPACK}\r\nContent-Length: "
        ).encode()
        self._socket: socket.socket | None = None
        self._used_at = 0.0

    def post(self, body: bytes, seconds: float) -> bytes:
        """The body of a 2xx answer; anything else is raised as the error it stands for."""
        deadline = time.monotonic() + seconds
        connection = self._connected(min(CONNECT_SECONDS, seconds))
        try:
            connection.settimeout(seconds)
            connection.sendall(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
            answer = _Answer()
            while not answer.complete:
                data = connection.recv(RECEIVE_BYTES)
                if not data:
                    raise BrokerUnavailable(f"the connection to {self.address} broke: it was closed")
                answer.feed(data)
                if not answer.complete:
                    connection.settimeout(max(0.001, deadline - time.monotonic()))
        except TimeoutError as failure:
            self.close()
            raise BrokerUnavailable(f"{self.address} did not answer within {seconds:.1f} s") from failure
        except (OSError, httptools.HttpParserError) as failure:
            self.close()
            raise BrokerUnavailable(f"the connection to {self.address} broke: {failure}") from failure
        except BaseException:  # interrupted: an answer that comes now would be taken for that of the next request
            self.close()
            raise
        self._used_at = time.monotonic()
        if not answer.keeps_alive:
            self.close()
        content = b"".join(answer.body)
        if answer.status < 300:
            return content
        raise refusal(self.address, answer.status, answer.retry_after, content)

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _connected(self, seconds: float) -> socket.socket:
        if self._socket is not None and self._is_stale(self._socket):
            self.close()
        if self._socket is None:
            self._socket = self._connect(seconds)
        return self._socket

    def _is_stale(self, connection: socket.socket) -> bool:
        """Whether the other side has closed it, or is about to. Nothing is to be read before a request."""
        if time.monotonic() - self._used_at > IDLE_SECONDS:
            return True
        return bool(select.select([connection], [], [], 0)[0])

    def _connect(self, seconds: float) -> socket.socket:
        try:
            connection = socket.create_connection(self._place, seconds)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(connection, server_hostname=self._place[0]) if self._tls else connection
        except OSError as failure:
            raise BrokerUnreachable(
                f"{self.address} cannot be reached ({failure}); is the broker running there?"
            ) from failure


class _Answer:
    """One answer, as the parser finds it."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.feed = self._parser.feed_data
        self.body: list[bytes] = []
        self.status = 0
        self.retry_after = ""
        self.complete = self.keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self.retry_after = value.decode("latin-1")

    def on_body(self, piece: bytes) -> None:
        self.body.append(piece)

    def on_message_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status >= 200:  # 1xx: the real one follows
            self.complete = True
            self.keeps_alive = self._parser.should_keep_alive()
