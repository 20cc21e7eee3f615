"""HTTP to one broker from threads: sockets that block, kept open, one request at a time on each.

A thread that sends by itself waits for nobody's event loop. What a general client does for each request would be paid
under Python's lock, by all threads together: here it is one write, one read and a parser in C.
"""

from __future__ import annotations

import contextlib

# `socket` imports it when it first looks for a host. A process that forks in that moment has a child that can never
# import it.
import encodings.idna  # noqa: F401
import os
import select
import socket
import struct
import time

from tallystick.client.connection.exchange import (
    CONNECT_SECONDS,
    IDLE_SECONDS,
    BatchHead,
    RequestHead,
    WireAnswer,
    broken,
    on_the_way,
    tls_to,
    unreachable,
)
from tallystick.core.addresses import broker_address
from tallystick.core.errors import BrokerUnavailable, TallystickError
from tallystick.credentials.credentials import NO_CREDENTIALS, Credentials
from tallystick.credentials.spoken import OtherProtocol, peek
from tallystick.credentials.tls import hang_up
from tallystick.resolving import connect

RECEIVE_BYTES = 16 * 1024, 256 * 1024
"""At first, and of a large answer: memory of the second size comes from the system, and goes back to it, each time."""
FRESH_SECONDS = 0.05
"""A connection that was of use so short a time ago is not looked at again: each look hands Python's lock to another
thread. If it has been closed since, the request meets that, and is sent again like any whose answer was lost."""
LEAST_SECONDS = 0.25
"""What the answer to a request gets at least, however long the connection took."""
KEPT = 2
"""How many connections are kept for the next request: one is in use, unless a request takes very long."""


class _Target:
    """Where requests go: one object, which threads find as a whole whenever the wire is pointed elsewhere."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        place = broker_address(address)
        self.address = address
        self.place = place
        self.head = BatchHead(place, credentials)


class Wire:
    """Connections to one broker, made when there is none. Whoever sends has one for itself until the answer is there:
    whatever else goes wrong, an answer reaches only whom it is for."""

    def __init__(self, address: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        self.connections = 0  # how many were made, for tests and measurements
        self._answered = False
        self._free: list[WireConnection] = []
        self._in_use: set[WireConnection] = set()
        self._credentials = credentials
        self._target = _Target(address, credentials)

    @property
    def address(self) -> str:
        return self._target.address

    def point_to(self, address: str) -> frozenset[WireConnection]:
        """Send to another address from now on; the connections to the old one whose answers are still waited for."""
        self._target = _Target(address, self._credentials)
        self.close()
        return frozenset(self._in_use)

    def send(self, body: bytes, seconds: float) -> WireConnection:
        """Send a request, and have the connection for its answer: to be given to `receive` or `drop`."""
        while True:
            connection = self._take()
            if connection is None:
                began = time.monotonic()
                connection = self._connect(min(CONNECT_SECONDS, seconds))
                seconds = max(seconds - round(time.monotonic() - began, 1), LEAST_SECONDS)
            self._in_use.add(connection)
            if connection.target is self._target:
                break
            self.drop(connection)  # pointed elsewhere meanwhile, and nothing was sent yet
        try:
            connection.send(connection.target.head.current(), body, seconds)
        except OSError as failure:
            self.drop(connection)
            # Without the frames inside of `ssl`, whose variables have the request, and so the token, in them.
            raise _broken(connection, failure, seconds) from failure.with_traceback(None)
        except BaseException:
            self.drop(connection)
            raise
        return connection

    def receive(self, connection: WireConnection) -> bytes:
        """The body of a 2xx answer; anything else is raised as the error it stands for."""
        try:
            answer = connection.receive()
        except OSError as failure:
            self.drop(connection)
            raise _broken(connection, self._explained(connection, failure), connection.seconds) from failure
        except BaseException:
            self.drop(connection)
            raise
        self._answered = True
        self._in_use.discard(connection)
        if answer.keeps_alive and len(self._free) < KEPT and connection.target is self._target:
            self._free.append(connection)
        else:
            connection.close()
        return answer.content(connection.target.address)

    def _explained(self, connection: WireConnection, failure: OSError) -> OSError:
        """The failure, or what the port speaks if it has never answered over HTTP."""
        if self._answered or not isinstance(failure, ConnectionError) or isinstance(failure, OtherProtocol):
            return failure
        place = connection.target.place
        return peek(place.host, place.port) or failure

    def drop(self, connection: WireConnection) -> None:
        """Whoever waited for the answer is gone: one that comes now would be taken for that of the next request."""
        self._in_use.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close what nobody uses."""
        while self._free:
            with contextlib.suppress(IndexError):
                self._free.pop().close()

    def interrupt(self, left: frozenset[WireConnection] | None = None) -> None:
        """Cut off the requests that are under way, or those of them that are on connections which were left."""
        for connection in frozenset(self._in_use) if left is None else left & self._in_use:
            connection.interrupt()

    def after_fork(self) -> None:
        """In a forked child: who has forked in the middle of a request must not read the parent's answer."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for connection in self._in_use:
            connection.cut_off(nowhere)
        os.close(nowhere)

    def _take(self) -> WireConnection | None:
        try:
            while True:
                connection = self._free.pop()
                if connection.target is self._target and not connection.is_stale():
                    return connection
                connection.close()
        except IndexError:
            return None

    def _connect(self, seconds: float) -> WireConnection:
        target = self._target
        try:
            tls = tls_to(target.place, self._credentials)
            plain = connect(target.place.host, target.place.port, seconds)
            self.connections += 1
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                plain = tls.wrap_socket(plain, server_hostname=target.place.host)
            return WireConnection(plain, target)
        except (OSError, UnicodeError) as failure:  # a name that DNS cannot hold is the second
            raise unreachable(target.address, failure) from failure


def _broken(connection: WireConnection, failure: OSError, seconds: float) -> TallystickError:
    address = connection.target.address
    if isinstance(failure, TimeoutError | BlockingIOError):
        return on_the_way(address, BrokerUnavailable(f"{address} did not answer within {seconds:.1f} s"))
    return broken(address, failure)


class WireConnection:
    """One socket, where it leads, and when it was last of use."""

    def __init__(self, plain: socket.socket, target: _Target) -> None:
        self.target = target
        self.seconds = -1.0
        self._socket = plain
        self._poll = select.poll()
        self._poll.register(plain, select.POLLIN)
        self._used_at = self._deadline = 0.0
        # The system's own timeouts need no look at the socket before each call. TLS and gevent have no use for them.
        self._system_waits = type(plain).__module__ == "socket"
        if self._system_waits:
            plain.settimeout(None)

    def send(self, head: RequestHead, body: bytes, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        if seconds != self.seconds:
            self._set_timeout(seconds)
        self._socket.sendall(b"%b%d\r\n\r\n%b" % (head, len(body), body))

    def _set_timeout(self, seconds: float) -> None:
        self.seconds = seconds
        if not self._system_waits:
            self._socket.settimeout(seconds)
            return
        timeval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, timeval)

    def receive(self) -> WireAnswer:
        answer = WireAnswer()
        size, more = RECEIVE_BYTES
        while not answer.complete:
            data = self._socket.recv(size)
            size = more
            if not data:
                raise ConnectionError("it was closed")
            answer.take(data)
            if not answer.complete and time.monotonic() > self._deadline:
                raise TimeoutError
        self._used_at = time.monotonic()
        return answer

    def is_stale(self) -> bool:
        """Whether the other side has closed it, or is about to. Nothing is to be read before a request."""
        idle = time.monotonic() - self._used_at
        return idle > FRESH_SECONDS and (idle > IDLE_SECONDS or bool(self._poll.poll(0)))

    def cut_off(self, nowhere: int) -> None:
        """Have it lead nowhere, and leave the parent's end as it is."""
        with contextlib.suppress(OSError):
            os.dup2(nowhere, self._socket.fileno(), inheritable=False)

    def interrupt(self) -> None:
        hang_up(self._socket)

    def close(self) -> None:
        self._socket.close()
