"""HTTP to one broker from an event loop: what was coalesced, questions and long polls, one request at a time on each
connection, which is kept open for the next.

What a general client does for each request costs ten times as much as the request itself, and blocks that come one by
one have nobody to share it with. It would take longer to import, too, than all the rest of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlencode

from tallystick.client.connection.exchange import (
    CONNECT_SECONDS,
    IDLE_SECONDS,
    LEAVE_SECONDS,
    BatchHead,
    RequestHead,
    WireAnswer,
    broken,
    on_the_way,
    request_head,
    tls_to,
    unreachable,
)
from tallystick.core.addresses import BrokerAddress, broker_address
from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable
from tallystick.credentials.credentials import NO_CREDENTIALS, Credentials
from tallystick.credentials.spoken import PEEK_BYTES, PEEK_SECONDS, OtherProtocol, other_protocol


class LoopWire:
    """Connections to one broker, made when there is none free. Belongs to the event loop that it is used on."""

    def __init__(self, address: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._credentials = credentials
        self._free: list[LoopWireConnection] = []
        self._open: set[LoopWireConnection] = set()
        self._closed = False
        self._answered = False
        self._aim(address)

    def _aim(self, address: str) -> None:
        self.address = address
        self._place = broker_address(address)
        self._batch_head = BatchHead(self._place, self._credentials)

    def point_to(self, address: str, *, cut: bool) -> None:
        """Send to another address from now on; `cut` off, after a moment, what is under way at the old one."""
        for connection in self._free:
            connection.close()
        self._free.clear()
        self._aim(address)
        if cut:
            for connection in self._open:
                asyncio.get_running_loop().call_later(LEAVE_SECONDS, connection.close)

    async def post(self, body: bytes, timeout: float) -> bytes:
        """Operations, and the body of a 2xx answer; anything else is raised as the error it stands for."""
        return await self._ask(self._batch_head.current(), body, timeout, once=True)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        query: Mapping[str, str | int] | None = None,
        timeout: float,
    ) -> bytes:
        """The same for everything else that a broker can be asked."""
        target = f"{path}?{urlencode(query)}" if query else path
        head = request_head(self._place, method, target, self._credentials)
        return await self._ask(head, body, timeout, once=method != "GET")

    async def _ask(self, head: RequestHead, body: bytes, timeout: float, *, once: bool) -> bytes:
        deadline = asyncio.get_running_loop().time() + timeout
        address = self.address
        try:
            answer = await self._over_kept(head, body, deadline, once)
            if answer is None:
                left = max(deadline - asyncio.get_running_loop().time(), 0.0)
                answer = await self._exchange(await self._connect(min(CONNECT_SECONDS, left)), head, body, deadline)
            return answer.content(address)
        except TimeoutError as failure:
            raise on_the_way(
                address, BrokerUnavailable(f"{address} did not answer within {timeout:.1f} s")
            ) from failure
        except OSError as failure:
            raise broken(address, await self._explained(failure)) from failure

    async def _explained(self, failure: OSError) -> OSError:
        """The failure, or what the port speaks if it has never answered over HTTP."""
        if self._answered or not isinstance(failure, ConnectionError) or isinstance(failure, OtherProtocol):
            return failure
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(PEEK_SECONDS):
                reader, writer = await asyncio.open_connection(self._place.host, self._place.port)
                return other_protocol(await reader.read(PEEK_BYTES)) or failure
        except OSError:
            return failure
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _over_kept(self, head: RequestHead, body: bytes, deadline: float, once: bool) -> WireAnswer | None:
        """None: over a new connection, please. A look may be taken again if what was kept for it has just been closed
        at the other end; whatever may have been acted on is not sent again from here."""
        connection = self._take()
        if connection is None:
            return None
        try:
            return await self._exchange(connection, head, body, deadline)
        except ConnectionError:
            if once or self._closed:
                raise
            return None

    async def _exchange(
        self, connection: LoopWireConnection, head: RequestHead, body: bytes, deadline: float
    ) -> WireAnswer:
        timer = asyncio.get_running_loop().call_at(deadline, connection.fail, TimeoutError())
        try:
            answer = await connection.ask(head, body)
        except BaseException:  # nobody waits any more: what comes now must not be taken for the next answer
            connection.close()
            raise
        finally:
            timer.cancel()
        self._answered = True
        if answer.keeps_alive and connection.place is self._place:
            self._free.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Cut off what is under way, and make no connection any more."""
        self._closed = True
        for connection in tuple(self._open):
            connection.close()
        self._free.clear()

    def _take(self) -> LoopWireConnection | None:
        """The one that was used last: those that are not needed grow old, and are closed."""
        while self._free:
            connection = self._free.pop()
            if not connection.is_stale():
                return connection
            connection.close()
        return None

    async def _connect(self, seconds: float) -> LoopWireConnection:
        if self._closed:
            raise BrokerUnreachable(f"the client was closed before {self.address} was asked")
        loop = asyncio.get_running_loop()
        address, place = self.address, self._place
        tls = tls_to(place, self._credentials)
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes as the connection is made, and a long poll
            # that was to end at the client's close would go on for ever.
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    lambda: LoopWireConnection(self._open, place), place.host, place.port, ssl=tls
                )
        except (OSError, UnicodeError) as failure:  # a name that DNS cannot hold is the second
            raise unreachable(address, failure) from failure
        if place is not self._place:
            connection.close()
            raise on_the_way(address, BrokerUnreachable(f"{address} was left for {self.address} before it was asked"))
        return connection


class LoopWireConnection(asyncio.Protocol):
    """One connection, and whoever waits for its answer."""

    def __init__(self, all_open: set[LoopWireConnection], place: BrokerAddress) -> None:
        self.place = place
        self._loop = asyncio.get_running_loop()
        self._all_open = all_open
        self._waiting: asyncio.Future[WireAnswer] | None = None
        self._answer = WireAnswer()
        self._used_at = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of uvloop it is one in all but its class
        self._all_open.add(self)

    def ask(self, head: RequestHead, body: bytes) -> asyncio.Future[WireAnswer]:
        if self._transport.is_closing():  # lost in the moment since it was made
            raise ConnectionError("it was closed")
        self._waiting = self._loop.create_future()
        self._answer = WireAnswer()
        self._transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        return self._waiting

    def is_stale(self) -> bool:
        """Whether the other side has closed it, or is about to."""
        return self._transport.is_closing() or self._loop.time() - self._used_at > IDLE_SECONDS

    def close(self) -> None:
        self._transport.abort()

    def fail(self, failure: Exception) -> None:
        """No answer, or none that can be read: whatever comes after it cannot be trusted either."""
        waiting, self._waiting = self._waiting, None
        self.close()
        if waiting is not None and not waiting.done():
            waiting.set_exception(failure)

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            self.close()  # an answer to no question
            return
        try:
            self._answer.take(data)
        except ConnectionError as failure:
            self.fail(failure)
            return
        if self._answer.complete:
            waiting, self._waiting = self._waiting, None
            self._used_at = self._loop.time()
            if not waiting.done():
                waiting.set_result(self._answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._all_open.discard(self)
        self.fail(error if isinstance(error, OSError) else ConnectionError(str(error or "it was closed")))
