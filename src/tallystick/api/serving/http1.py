"""HTTP/1.1 for an ASGI application, with next to nothing around it: it runs in place of uvicorn's own.

A client that does not coalesce pays for a request with each operation. Here a request that came in one piece is one
read, one task and one write; uvicorn's own protocol writes the head and the body of an answer by themselves, which is
twice the system calls and wakes the client twice, and keeps events and timers for each request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import unquote

import httptools

from tallystick.api.serving.asgi import CallerGone, Receive, Scope, Send
from tallystick.api.serving.crowd import ConnectionPlace, Crowd
from tallystick.api.serving.http_exchange import HttpExchange
from tallystick.api.serving.peer_names import PeerCertificate, has_passed, peer_certificate
from tallystick.api.serving.problems import last_words
from tallystick.api.serving.unread_answers import UnreadAnswers
from tallystick.core.errors import InvalidRequest, TallystickError, TooLarge, Unauthenticated

log = logging.getLogger("tallystick.api")

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
MIN_BODY_RATE = 1024  # bytes a second, once a body has taken longer than its time: a drip does not hold a place
MAX_UNREAD_BYTES = 64 * 1024  # of a body that the application has not asked for: the client has to wait then
SLICE_BYTES = 2_048  # understood at once where heads may be: so few requests wait in line, whatever is sent ahead
_VERSIONS = ("1.1", "1.0")
_FRAMING = (b"content-length", b"transfer-encoding")
_TO_LOOK_AT = frozenset((b"content-length", b"expect", b"content-encoding"))
_LOOK_SECONDS = 5.0  # between two looks at a connection
_unread = UnreadAnswers()
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class ClientPatience(NamedTuple):
    """How long a client may take, in seconds: for a head, without a byte of a body, without a request."""

    head: float = 10.0
    body: float = 60.0
    idle: float = 75.0


PATIENCE = ClientPatience()


class Connected(Protocol):
    """Where a connection and its tasks are known, until they end."""

    connections: set[Any]
    tasks: set[asyncio.Task[Any]]


class Http1Connection(asyncio.Protocol):
    """One connection, one exchange at a time; requests that a client sends ahead wait in line.

    Whoever makes it calls `shutdown` at the end, and waits for its connections and tasks.
    """

    def __init__(
        self,
        app: _Application,
        connected: Connected,
        patience: ClientPatience = PATIENCE,
        place: ConnectionPlace | None = None,
    ) -> None:
        self._app, self._patience = app, patience
        self._place = place or Crowd().enter("")
        self._connections, self._tasks = connected.connections, connected.tasks
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._line: deque[HttpExchange] = deque()  # the first is under way, once it is started
        self._parsed: HttpExchange | None = None  # the one whose body is being read
        self._started = False
        self._head_bytes = 0  # of the request line and all headers, and of trailers
        self._loose_bytes = 0  # received since the last thing that has an announced length
        self._body_bytes = 0  # of a request that did not come in one piece
        self._body_left = 0  # of a body whose length was said
        self._ahead = b""  # received, and not looked at yet
        self._body_at = self._paused_at = self._closing_at = 0.0
        self._closing_bytes = -1  # that wait to be read before the end
        self._replaying = False
        self._paused = self._ending = self._broken = False
        self.full: asyncio.Future[None] | None = None  # done when the client has read what it was sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of uvloop it is one in all but its class
        self._client = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._certificate = peer_certificate(transport.get_extra_info)
        self._scheme = "http" if transport.get_extra_info("ssl_object") is None else "https"
        self._connections.add(self)
        self._heard_at = self._idle_at = self._head_at = self._loop.time()
        self._timer = self._loop.call_later(min(_LOOK_SECONDS, *self._patience), self._look)

    def connection_lost(self, error: Exception | None) -> None:
        self._place.leave()
        self._connections.discard(self)
        self._timer.cancel()
        self.resume_writing()
        for exchange in self._line:
            exchange.lose()

    def _look(self) -> None:
        """Whether the client takes too long: one timer a connection that looks again later, not one a request that is
        nearly always cancelled."""
        now = self._loop.time()
        _unread.look_at(self._transport, now)
        waits_for, until = self._due(now)
        if now < until:
            self._timer = self._loop.call_later(min(_LOOK_SECONDS, until - now, *self._patience), self._look)
        elif waits_for == "request":
            self._transport.close()
            self._timer = self._loop.call_later(self._patience.head, self._look)
        else:
            self._place.cut(waits_for)
            self._transport.abort()

    def _due(self, now: float) -> tuple[str, float]:
        """What the client is to do now, and by when."""
        if self._transport.is_closing():
            return "unread", self._end_due(now)
        if self._head_at and not self._line:
            return "head", self._head_at + self._patience.head
        if self._parsed is not None:
            return "body", now + _LOOK_SECONDS if self._paused else self._body_due(self._parsed)
        idle = not self._line and self.full is None
        return "request", self._idle_at + self._patience.idle if idle else now + _LOOK_SECONDS

    def _end_due(self, now: float) -> float:
        """A client that reads on may take its time for the end of its answer."""
        unread = self._transport.get_write_buffer_size()
        if unread != self._closing_bytes:
            self._closing_at, self._closing_bytes = now, unread
        return self._closing_at + self._patience.body

    def _body_due(self, exchange: HttpExchange) -> float:
        if exchange.over:  # nobody wants the rest of it, however fast it comes
            return self._idle_at + self._patience.body
        fast_enough = max(self._patience.body, self._body_bytes / MIN_BODY_RATE)
        return min(self._heard_at + self._patience.body, self._body_at + fast_enough)

    def shutdown(self) -> None:
        """No more requests; the one under way is answered."""
        self._ending = True
        if not self._line:
            self._transport.close()
        for exchange in self._line:
            exchange.keep_alive = False

    def abort(self) -> None:
        """No answer to anything any more."""
        self._transport.abort()

    # --- what the network brings -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if self._ahead:
            self._ahead += data  # TLS may bring what it had before it was told to wait
        elif not self._broken:
            self._take(data)

    def _take(self, data: bytes) -> None:
        taken = 0
        while taken < len(data) and len(self._line) <= 1:
            piece = memoryview(data)[taken : taken + max(SLICE_BYTES, self._body_left)]
            if not self._understand(piece):
                return
            taken += len(piece)
        self._ahead = data[taken:]
        if self._parsed is not None:
            if not self._body_bytes:
                self._body_at = self._heard_at
            self._body_bytes += taken
        if self._line and not self._started:
            self._start()
        # Whoever sends ahead, or more than is being read, has to wait.
        if len(self._line) > 1 or (self._line and self._line[-1].unread > MAX_UNREAD_BYTES):
            self._paused, self._paused_at = True, self._heard_at
            self._transport.pause_reading()

    def _understand(self, data: memoryview) -> bool:
        """False if it is no request: the connection ends."""
        self._loose_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            known = error.__context__
            self._refuse(known if isinstance(known, TallystickError) else InvalidRequest("this is no HTTP request"))
            return False
        if self._loose_bytes > MAX_HEAD_BYTES:
            self._refuse(_endless())
            return False
        return True

    def _feed(self, data: memoryview) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                self._go_on_without_upgrade()
                data = data[upgrade.args[0] :]

    def _go_on_without_upgrade(self) -> None:
        """A wish for another protocol (`Upgrade: h2c`, which Java's client sends with every request) may be ignored,
        but the parser takes the body for the first words of that protocol. So a new parser is told of a request with a
        body of the same form, and reads the rest as if it had read the head, too."""
        framing = [name + b": " + value + b"\r\n" for name, value in self._headers if name in _FRAMING]
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        try:
            self._parser.feed_data(b"".join((b"POST / HTTP/1.1\r\n", *framing, b"\r\n")))
        finally:
            self._replaying = False

    def read_on(self) -> None:
        """The application waits for more of the request, or for its client to go away."""
        if self._paused and len(self._line) == 1 and not self._broken:
            self._resume()

    def _resume(self) -> None:
        now, self._paused = self._loop.time(), False
        self._body_at += now - self._paused_at  # the client could not send
        self._heard_at = now
        if self._ahead:
            self._take(self._ahead)
        if not self._paused:
            self._transport.resume_reading()

    def _refuse(self, why: TallystickError) -> None:
        """What follows on this connection cannot be trusted. What was understood before is answered first."""
        self._place.tell(f"is ended: {why.detail}", why.code)
        broken, self._parsed = self._parsed, None
        self._paused = self._ending = self._broken = True
        self._transport.pause_reading()
        if broken is not None and broken in self._line:
            broken.lose()
            self._line.remove(broken)
        if self._line:
            self._line[-1].keep_alive = False
            if not self._started:
                self._start()
            return
        if broken is None or not broken.begun:
            self.write(last_words(why))
        self._transport.close()

    # --- what the parser finds -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        self._head_at = self._heard_at
        self._head_bytes = self._hosts = self._length = 0
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._continues = self._in_body = False

    def on_url(self, piece: bytes) -> None:
        if self._replaying:
            return
        self._count(len(piece))
        self._url += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._replaying:
            return
        self._count(len(name) + len(value))
        if self._in_body:
            return  # a trailer: who asks, and for what, was said in the head and nowhere else
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name in _TO_LOOK_AT:
            self._look_at(name, value)
        self._headers.append((name, value))

    def _look_at(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            self._length = int(value) if value.isdigit() else 0
        elif name == b"expect" and value.lower() == b"100-continue":
            self._continues = True
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise InvalidRequest(f"Content-Encoding: {value[:40]!r} is not decoded here; send the body as it is")

    def _count(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _endless()

    def on_headers_complete(self) -> None:
        if self._replaying:
            return
        self._loose_bytes = self._body_bytes = 0
        self._in_body = True
        self._body_left = self._length
        self._head_at = 0.0
        url = httptools.parse_url(self._url)
        raw_path: bytes = url.path or b"/"  # which the address of a whole server leaves out
        path, version = raw_path.decode("ascii"), self._parser.get_http_version()
        if self._hosts != 1 or len(self._headers) > MAX_HEADERS or version not in _VERSIONS:
            self._check_head(version)
        if has_passed(self._certificate.expires_at):
            self._forget_certificate()
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": self._parser.get_method().decode("ascii"),
            "scheme": self._scheme,
            "client": self._client,
            "tls_names": self._certificate.names,
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self._headers,
        }
        keep_alive = not self._ending and version != "1.0" and self._parser.should_keep_alive()
        self._parsed = HttpExchange(self, scope, keep_alive, self._continues and version != "1.0")
        self._line.append(self._parsed)

    def _check_head(self, version: str) -> None:
        """Says what is wrong with an unusual one, if something is."""
        if version not in _VERSIONS:
            raise InvalidRequest(f"HTTP/{version} is not spoken here, only HTTP/1.1 and HTTP/1.0")
        if self._hosts != 1 and (self._hosts or version != "1.0"):
            raise InvalidRequest(f"Host: a request has one, this one has {self._hosts or 'none'}", field="Host")
        if len(self._headers) > MAX_HEADERS:
            raise TooLarge(f"the request has more than {MAX_HEADERS} headers, the limit of this broker")

    def _forget_certificate(self) -> None:
        """The request is one without a certificate, and the last of its connection: the next one shows a new one."""
        if self._certificate.required:
            raise Unauthenticated("the certificate that this connection was made with has expired")
        self._certificate, self._ending = PeerCertificate(), True

    def on_body(self, piece: bytes) -> None:
        self._loose_bytes = 0
        self._body_left -= len(piece)
        if self._parsed is not None:
            self._parsed.add(piece)

    def on_message_complete(self) -> None:
        self._loose_bytes = 0
        # With a wish for another protocol this comes before the body.
        if self._parsed is not None and not self._parser.should_upgrade():
            self._parsed.end()
            self._parsed = None

    # --- exchanges -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._started = True
        task = self._loop.create_task(self._run(self._line[0]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, exchange: HttpExchange) -> None:
        exchange.scope["client_gone"] = exchange.until_gone
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except CallerGone:
            pass
        except Exception:
            log.exception("internal error")
        finally:
            del exchange.scope["client_gone"]  # a cycle would keep the exchange until the next garbage collection
            if not exchange.over and not exchange.gone:
                self._transport.abort()  # no answer, or half of one: the client must not take it for a whole one

    def answered(self, exchange: HttpExchange) -> None:
        self._idle_at = self._loop.time()
        self._line.popleft()
        self._started = False
        if not exchange.keep_alive:
            self._transport.close()
        elif self._line:
            self._start()
        elif self._paused:
            self._resume()

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def write_all(self, pieces: list[bytes | memoryview]) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(pieces)

    def pause_writing(self) -> None:
        self.full = self._loop.create_future()
        _unread.add(self._transport, self._loop.time())
        self._timer.cancel()
        self._timer = self._loop.call_later(min(_LOOK_SECONDS, _unread.patience), self._look)

    def resume_writing(self) -> None:
        _unread.remove(self._transport)
        if self.full is not None and not self.full.done():
            self.full.set_result(None)
        self.full = None


def _endless() -> TooLarge:
    return TooLarge(f"the request has more than {MAX_HEAD_BYTES} bytes of headers, the limit of this broker")
