"""A lean HTTP/1.1 client, with TLS or without: one connection a request at a time, kept open for the next.

The broker makes thousands of small requests a second to the same few hosts, on one core. What a general client does
for each (sessions, cookies, redirects, streaming) costs several times as much as the request itself: 24 us of processor
time a call here, 139 with aiohttp (`python -m benchmarks.http_clients`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Callable
from typing import cast

import httptools

from tallystick.broker.outbound.allow_list import Resolver, Target
from tallystick.broker.outbound.answer import (
    MAX_ANSWER_BYTES,
    Answered,
    OutboundFailed,
    broken,
    garbled,
    late,
    unsendable,
)
from tallystick.core.codings import unread_coding

# Servers close connections that are idle, many after 5 s, some after 2. A request that meets the closing may have been
# processed or not, so connections are given up well before that.
IDLE_SECONDS = 1.5
_BEGINNING = b"HTTP/"
MAX_HEAD_BYTES = 64 * 1024
MAX_RECEIVED_BYTES = 1024 * 1024  # of one answer, with everything that is not its body: chunk sizes, 1xx answers, ...

_Place = tuple[str, str, int]


def _place(target: Target) -> _Place:
    """Requests to the same place may share a connection."""
    return target.scheme, target.host, target.port


def tls_context() -> ssl.SSLContext:
    """Who answers must be who the certificate says, on the word of somebody whom this machine trusts."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class HttpConnection(asyncio.Protocol):
    """One connection to an address that was checked."""

    def __init__(self, give_back: Callable[[HttpConnection], None], forget: Callable[[HttpConnection], None]) -> None:
        self._give_back, self._forget = give_back, forget
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[Answered] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        self._begin()

    def _begin(self) -> None:
        self._received = self._size = 0
        self._body: list[bytes] = []
        self._header_names: list[bytes] = []
        self._coding = ""
        self._has_head = self._complete = self._keeps_alive = self._more = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of uvloop it is one in all but its class

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    def ask(self, request: bytes, until: float, seconds: float) -> asyncio.Future[Answered]:
        """`until` is the loop's time at which the time, once `seconds`, is over."""
        self._begin()
        self._waiting = self._loop.create_future()
        self._timer = self._loop.call_at(until, self._late, seconds)
        self._transport.write(request)
        return self._waiting

    def abort(self) -> None:
        """Nobody waits any more."""
        self._fail(broken("given up"))

    def close(self) -> None:
        self._transport.abort()

    # --- the end of a request --------------------------------------------------------------------------------

    def _end(self) -> asyncio.Future[Answered] | None:
        waiting, self._waiting = self._waiting, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return waiting if waiting is not None and not waiting.done() else None

    def _late(self, seconds: float) -> None:
        self._fail(late(seconds))

    def _fail(self, error: OutboundFailed) -> None:
        waiting = self._end()
        self._transport.abort()
        if waiting is not None:
            waiting.set_exception(error)

    def _finish(self, reusable: bool) -> None:
        waiting = self._end()
        if waiting is not None:
            body = b"".join(self._body)
            # An empty body hides no word, whatever its coding.
            waiting.set_result(Answered(self._parser.get_status_code(), body, self._coding if body else ""))
        if reusable and waiting is not None and not self._transport.is_closing():
            self._give_back(self)
        else:
            self._transport.abort()

    # --- what the network brings -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            self._transport.abort()  # an answer to no question: what comes next on this connection cannot be trusted
            return
        try:
            if not self._received and not _BEGINNING.startswith(data[: len(_BEGINNING)]):
                raise httptools.HttpParserError("it does not begin as one")  # the parser would take RTSP's as well
            self._received += len(data)
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(garbled(f"no HTTP answer: {type(error).__name__}: {error}"))
            return
        if self._complete:
            self._finish(reusable=self._keeps_alive and not self._more)
        elif self._has_head and (self._size >= MAX_ANSWER_BYTES or self._received > MAX_RECEIVED_BYTES):
            self._finish(reusable=False)
        elif not self._has_head and self._received > MAX_HEAD_BYTES:
            self._fail(garbled("no HTTP answer: its headers have no end"))

    def connection_lost(self, error: Exception | None) -> None:
        self._forget(self)
        if self._waiting is None:
            return
        if error is None and self._has_head and self._ends_with_the_connection():
            self._finish(reusable=False)
        else:
            what = "the answer was complete" if self._received else "an answer came"
            self._fail(broken(f"the connection was closed before {what}" + (f": {error}" if error else "")))

    def _ends_with_the_connection(self) -> bool:
        return not {b"content-length", b"transfer-encoding"} & {name.lower() for name in self._header_names}

    # --- what the parser finds -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._more = self._complete  # bytes behind the end of the answer

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_names.append(name)
        self._coding = unread_coding(name, value) or self._coding

    def on_headers_complete(self) -> None:
        self._has_head = self._parser.get_status_code() >= 200

    def on_body(self, piece: bytes) -> None:
        if self._size < MAX_ANSWER_BYTES:
            self._body.append(piece[: MAX_ANSWER_BYTES - self._size])
            self._size += len(piece)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._complete = True
            self._keeps_alive = self._parser.should_keep_alive()  # asked now: the parser forgets it with the message
        else:
            self._coding = ""
            self._header_names.clear()  # an interim answer (1xx): the real one follows


class Http1:
    """Connections to any number of hosts. There is no limit here: whoever asks has one for each host."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._loop = asyncio.get_running_loop()
        self._idle: defaultdict[_Place, list[HttpConnection]] = defaultdict(list)
        self._open: set[HttpConnection] = set()
        self._all_gone = asyncio.Event()
        self._tls: ssl.SSLContext | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def request(self, target: Target, request: bytes, seconds: float) -> Answered:
        """Send the bytes of a request and bring the answer; OutboundFailed if there is none in time.

        Nothing is sent twice: a connection that breaks after a request was written to it leaves open whether the
        service has seen it, and whoever asked must decide what follows.
        """
        deadline = self._loop.time() + seconds
        connection = self._take(target)
        if connection is None:
            connection = await self._connect(target, seconds)
        try:
            return await connection.ask(request, deadline, seconds)
        except asyncio.CancelledError:
            connection.abort()
            raise

    def _take(self, target: Target) -> HttpConnection | None:
        """The connection that was used last: those that are not needed grow old and are closed."""
        idle = self._idle.get(_place(target))
        oldest = self._loop.time() - IDLE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self, target: Target, seconds: float) -> HttpConnection:
        try:
            async with asyncio.timeout(seconds):
                return await self._connect_to_one(target)
        except TimeoutError as error:
            raise late(seconds) from error
        except UnicodeError as error:  # a name that DNS cannot hold
            raise unsendable(error) from error
        except ssl.SSLError as error:  # it speaks no TLS, or is not who its certificate would have to say
            raise garbled(error) from error
        except OSError as error:
            raise broken(error) from error

    async def _connect_to_one(self, target: Target) -> HttpConnection:
        addresses = await self._resolver.addresses(target.host)
        for address in addresses[:-1]:
            try:
                # Not the whole time for one of several: the others are to have their turn.
                async with asyncio.timeout(1.0):
                    return await self._open_at(address, target)
            except OSError:  # a TimeoutError is one of them
                continue
        return await self._open_at(addresses[-1], target)

    async def _open_at(self, address: str, target: Target) -> HttpConnection:
        """The address is where the connection goes; the name is what a certificate must say."""
        place = _place(target)
        tls = server_name = None
        if target.scheme == "https":
            self._tls = tls = self._tls or tls_context()
            server_name = target.host
        _, connection = await self._loop.create_connection(
            lambda: HttpConnection(lambda one: self._keep(place, one), self._gone),
            address,
            target.port,
            ssl=tls,
            server_hostname=server_name,
        )
        self._open.add(connection)
        return connection

    def _gone(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._all_gone.set()

    def _keep(self, place: _Place, connection: HttpConnection) -> None:
        connection.idle_since = self._loop.time()
        self._idle[place].append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        oldest = self._loop.time() - IDLE_SECONDS
        for place, idle in list(self._idle.items()):
            kept = [one for one in idle if one.usable and one.idle_since > oldest]
            for one in idle:
                if one.usable and one.idle_since <= oldest:
                    one.close()
            if kept:
                self._idle[place] = kept
            else:
                del self._idle[place]
        if self._idle:
            self._sweep = self._loop.call_later(IDLE_SECONDS / 2, self._close_idle)

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._all_gone.clear()
        for connection in list(self._open):
            connection.close()
        if self._open:
            await self._all_gone.wait()
