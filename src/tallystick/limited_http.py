"""HTTP/1.1 on `http.client` with one time limit for a whole request: connection, TLS, request, head and body.

The timeout of a socket limits a single read, so a server that sends a byte now and then never exceeds it.
"""

from __future__ import annotations

import functools
import http.client
import io
import socket
import time
from typing import TYPE_CHECKING, Any, Protocol, cast

from tallystick.resolving import connect

if TYPE_CHECKING:
    import ssl

LEAST_BYTES_PER_SECOND = 64 * 1024
"""A slower network cannot carry the data of a broker. Small enough for the worst links between data centers."""
_SILENCES = 4


class TooSlow(TimeoutError):
    """A stream fell below the least rate."""


class Limit(Protocol):
    def left(self) -> float:
        """Seconds that the next operation on the socket may take. Raises TimeoutError if there are none."""

    def moved(self, size: int, waited: float) -> None:
        """Account for one read: its bytes, and the seconds that it waited."""


class RequestLimit:
    """The limit of a request whose answer is small: everything ends `seconds` after its start."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def moved(self, size: int, waited: float) -> None:
        """The size changes nothing."""


class StreamLimit:
    """The limit of a stream, which may rightly take hours: `seconds` of silence, and a least rate.

    Only the time in reads counts, because a slow reader is not the fault of the server. The rate has four times the
    silence in advance: a broker that scans a table may find little for a while.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._credit = seconds, _SILENCES * seconds

    def left(self) -> float:
        if self._credit <= 0:
            raise TooSlow(f"slower than {LEAST_BYTES_PER_SECOND // 1024} KiB/s")
        return self._seconds

    def moved(self, size: int, waited: float) -> None:
        self._credit += size / LEAST_BYTES_PER_SECOND - waited


class _LimitedReader(io.RawIOBase):
    """The receiving side of a socket, each of its reads within the limit."""

    def __init__(self, connection: socket.socket, limit: Limit) -> None:
        self.limit = limit
        self._socket = connection
        self._source = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self.limit.left())
        began = time.monotonic()
        size = self._source.readinto(buffer)
        self.limit.moved(size or 0, time.monotonic() - began)
        return size

    def close(self) -> None:
        self._source.close()
        super().close()

    def makefile(self, *_: object) -> io.BufferedReader:
        """What `HTTPResponse` asks a socket for."""
        return io.BufferedReader(self)


class LimitedResponse(http.client.HTTPResponse):
    def __init__(self, connection: socket.socket, *args: Any, limit: Limit, **more: Any) -> None:
        self._reader = _LimitedReader(connection, limit)
        super().__init__(cast(socket.socket, self._reader), *args, **more)

    def go_on_within(self, limit: Limit) -> None:
        """Read the rest within another limit."""
        self._reader.limit = limit


class LimitedConnection(http.client.HTTPConnection):
    """A connection whose `limit` holds for the request under way. The first request has `timeout` seconds.

    Set `limit` before each further request.
    """

    response_class: Any

    def __init__(
        self, host: str, port: int | None = None, *, timeout: float, context: ssl.SSLContext | None = None
    ) -> None:
        if context is not None:
            self.default_port = http.client.HTTPS_PORT
        super().__init__(host, port, timeout=timeout)
        self.limit: Limit = RequestLimit(timeout)
        self._context = context

    def connect(self) -> None:
        self.sock = connect(self.host, self.port, self.limit.left())
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            self.sock.settimeout(self.limit.left())
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)

    def send(self, data: Any) -> None:
        """In pieces: with TLS, the timeout of the socket would hold for each record of 16 KiB."""
        if self.sock is None:
            self.connect()
        rest = memoryview(data).cast("B")
        while rest:
            self.sock.settimeout(self.limit.left())
            rest = rest[self.sock.send(rest) :]

    def getresponse(self) -> LimitedResponse:
        self.response_class = functools.partial(LimitedResponse, limit=self.limit)
        return cast(LimitedResponse, super().getresponse())
