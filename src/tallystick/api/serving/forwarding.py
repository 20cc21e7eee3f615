"""Requests that belong to another broker: handed on as they are, one hop, and its answer handed back piece by piece.

Nothing is repeated here: a broker whose connection broke after a request was sent to it may have acted. The caller is
told so, and knows whether its request may be sent again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

import httptools

from tallystick.api.serving.asgi import CallerGone, Receive, Scope, Send
from tallystick.core.addresses import BrokerAddress
from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable

log = logging.getLogger("tallystick.api")

FORWARDED = b"tallystick-forwarded"
CALLER = b"tallystick-caller"  # who is asking, as one broker tells another; what others send under this name stays here
CONNECT_SECONDS = 2.0
IDLE_SECONDS = 30.0  # well before the other broker would close a connection that nobody uses
PIECE_BYTES = 256 * 1024
MAX_HEAD_BYTES = 64 * 1024
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect")
)
_OURS = frozenset((b"host", CALLER))
_Headers = Iterable[tuple[bytes, bytes]]
_Place = tuple[str, str, int]


class PeerWait:
    """Since when a request has waited for the other broker, in the time of the loop.

    None while it waits for its own client, which may be slow.
    """

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since: float | None = None

    def begin(self) -> None:
        self.since = asyncio.get_running_loop().time()

    def end(self) -> None:
        self.since = None


class Forwarder:
    """Connections to the other brokers, kept open for the next request. `tls` is what those to https are made with."""

    def __init__(self, broker_id: str, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context) -> None:
        self._id, self._tls = broker_id.encode(), tls
        self._idle: defaultdict[_Place, list[_Line]] = defaultdict(list)
        self._in_use: set[_Line] = set()

    async def forward(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        to: BrokerAddress,
        path: bytes,
        caller: bytes = b"",
        wait: PeerWait | None = None,
    ) -> int:
        """Ask the broker at `to` what was asked here, under `path`; the status that it answered. Raises
        `BrokerUnavailable` as long as nothing of the answer was handed on, `BrokerUnreachable` if nothing was sent.
        `caller` says who is asking, to a broker that wants to know. `wait` shows how long the other broker has been
        silent; this method sets no limit."""
        wait = wait or PeerWait()
        wait.begin()
        place = (to.scheme, to.host, to.port)
        line = self._take(place) or await _connect(to, self._tls() if to.scheme == "https" else None)
        self._in_use.add(line)
        try:
            exchange = _Exchange(line, to.authority, scope, receive, send, wait)
            status = await exchange.run(_head(scope, to, path, self._id, caller))
            if line.reusable:
                self._keep(place, line)
            return status
        finally:
            self._in_use.discard(line)
            if not line.kept:
                line.close()

    async def check(self, to: BrokerAddress) -> None:
        """Ask for `/healthz` on a new connection. Raises OSError or `BrokerUnavailable` if no HTTP response begins."""
        line = await _connect(to, self._tls() if to.scheme == "https" else None)
        try:
            target, host = f"{to.path}/healthz".encode(), to.authority.encode()
            line.writer.write(b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % (target, host))
            try:
                await line.reader.readexactly(len(b"HTTP/1.1 200"))
            except asyncio.IncompleteReadError as error:
                raise ConnectionResetError("the connection was closed") from error
        finally:
            line.close()

    def _take(self, place: _Place) -> _Line | None:
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        idle = self._idle[place]
        while idle:
            line = idle.pop()
            line.kept = False
            if line.idle_since > oldest and not line.reader.at_eof() and not line.writer.is_closing():
                return line
            line.close()
        return None

    def _keep(self, place: _Place, line: _Line) -> None:
        now = asyncio.get_running_loop().time()
        line.idle_since, line.kept = now, True
        for idle in self._idle.values():
            while idle and idle[0].idle_since < now - IDLE_SECONDS:
                idle.pop(0).close()
        self._idle[place].append(line)

    def close(self) -> None:
        for line in [*self._in_use, *(one for idle in self._idle.values() for one in idle)]:
            line.close()
        self._idle.clear()


class _Line:
    """One connection to another broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.idle_since = 0.0
        self.kept = self.reusable = False

    def close(self) -> None:
        self.writer.transport.abort()


async def _connect(to: BrokerAddress, tls: ssl.SSLContext | None) -> _Line:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return _Line(*await asyncio.open_connection(to.host, to.port, limit=PIECE_BYTES, ssl=tls))
    except ssl.SSLError as error:  # no other owner will mend that
        raise BrokerUnavailable(f"no TLS with the owner of this store, {to.text}: {error}; see tls_ca") from error
    except OSError as error:  # a TimeoutError is one of them
        raise BrokerUnreachable(
            f"the owner of this store, {to.authority}, cannot be reached: {error or 'it does not answer'}"
        ) from error


def target_of(scope: Scope, path: bytes) -> bytes:
    """A path with the query that the request has."""
    return path + b"?" + scope["query_string"] if scope["query_string"] else path


def _head(scope: Scope, to: BrokerAddress, path: bytes, forwarder: bytes, caller: bytes) -> bytes:
    target = to.path.encode() + target_of(scope, path)
    lines = [b"%b %b HTTP/1.1" % (scope["method"].encode(), target), b"host: " + to.authority.encode()]
    lines += [
        b"%b: %b" % header for header in scope["headers"] if header[0] not in _HOP_BY_HOP and header[0] not in _OURS
    ]
    lines.append(b"%b: %b" % (FORWARDED, forwarder))
    if caller:
        lines.append(b"%b: %b" % (CALLER, caller))
    if _chunked(scope):
        lines.append(b"transfer-encoding: chunked")
    return b"\r\n".join((*lines, b"", b""))


def _chunked(scope: Scope) -> bool:
    return any(name == b"transfer-encoding" for name, _ in scope["headers"])


class _Exchange:
    """One request on its way out and its answer on the way back, side by side: the answer may come before the end of
    the request (a refusal), and a caller who goes away is gone for the other broker, too."""

    def __init__(self, line: _Line, authority: str, scope: Scope, receive: Receive, send: Send, wait: PeerWait) -> None:
        self._authority = authority
        self._line, self._scope, self._receive, self._send, self._wait = line, scope, receive, send, wait
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._has_head = self._complete = self._begun = False
        self._received = 0
        self._sent_all = False

    async def run(self, head: bytes) -> int:
        self._line.reusable = False
        sending = asyncio.create_task(self._hand_on(head))
        answering = asyncio.create_task(self._hand_back())
        try:
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                sending.result()  # ended before the answer: the caller is gone, or the connection is
            status = await answering
            self._line.reusable = self._sent_all and self._keeps_alive
            return status
        except (OSError, httptools.HttpParserError) as error:
            if self._begun:
                raise CallerGone from error  # half of an answer cannot be mended: the connection ends
            raise BrokerUnavailable(
                f"the owner of this store, {self._authority}, closed the connection before it answered ({error}); "
                "it may have acted"
            ) from error
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    # --- there -----------------------------------------------------------------------------------------------------

    async def _hand_on(self, head: bytes) -> None:
        """The request, then nothing until the caller goes away."""
        writer, chunked = self._line.writer, _chunked(self._scope)
        writer.write(head)  # not with the body: a client may wait for what is said to its head
        more = True
        while more:
            self._wait.end()
            event = await self._receive()
            self._wait.begin()
            if event["type"] == "http.disconnect":
                raise CallerGone
            body, more = event.get("body", b""), event.get("more_body", False)
            writer.write(_framed(body, more, chunked))
            with suppress(ConnectionError):  # whoever answers without reading it all has a reason, and that is read
                await writer.drain()
        self._sent_all = True
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise CallerGone

    # --- and back --------------------------------------------------------------------------------------------------

    async def _hand_back(self) -> int:
        while not self._complete:
            data = await self._line.reader.read(PIECE_BYTES)
            if not data:
                raise ConnectionResetError("the connection was closed")
            self._received += len(data)
            self._parser.feed_data(data)
            if not self._has_head and self._received > MAX_HEAD_BYTES:
                raise ConnectionResetError("its headers have no end")
            if self._has_head:
                self._wait.end()
                await self._pass()
            self._wait.begin()
        return int(self._parser.get_status_code())

    async def _pass(self) -> None:
        if not self._begun:
            headers = [header for header in self._headers if header[0] not in _HOP_BY_HOP]
            self._begun = True
            await self._send(
                {"type": "http.response.start", "status": self._parser.get_status_code(), "headers": headers}
            )
        body, self._pieces = b"".join(self._pieces), []
        if body or self._complete:
            await self._send({"type": "http.response.body", "body": body, "more_body": not self._complete})

    # --- what the parser finds -------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._has_head = self._parser.get_status_code() >= 200
        if self._has_head and self._scope["method"] == "HEAD":
            self._end()  # the parser would wait for the body that the headers speak of

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._end()
        else:
            self._headers.clear()  # an interim answer: the real one follows

    def _end(self) -> None:
        self._complete = True
        # After a HEAD the parser is in the middle of a body that never comes, so the connection is not used again.
        self._keeps_alive = self._scope["method"] != "HEAD" and self._parser.should_keep_alive()


def _framed(body: bytes, more: bool, chunked: bool) -> bytes:
    if not chunked:
        return body
    piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return piece if more else piece + b"0\r\n\r\n"
