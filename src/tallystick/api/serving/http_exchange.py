"""One request over HTTP/1.1 and its answer, as an ASGI application receives the one and sends the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from tallystick.api.serving.asgi import CallerGone, Scope

if TYPE_CHECKING:
    from tallystick.api.serving.http1 import Http1Connection

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {status.value: f"HTTP/1.1 {status} {status.phrase}\r\n".encode() for status in HTTPStatus}


class HttpExchange:
    """One request and its answer; `receive` and `send` are what ASGI calls so."""

    def __init__(self, connection: Http1Connection, scope: Scope, keep_alive: bool, continues: bool) -> None:
        self._connection, self.scope = connection, scope
        self.keep_alive = keep_alive
        self._continues = continues  # the client waits for a word before it sends the body
        self._pieces: list[bytes] = []
        self.unread = 0
        self._complete = False  # the whole request is here
        self._told = False  # and the application has it
        self._waiting: asyncio.Future[None] | None = None
        self._left: asyncio.Event | None = None
        self._head = b""
        self._chunked = False
        self.begun = self.over = self.gone = False

    # --- the request -----------------------------------------------------------------------------------------------

    def add(self, piece: bytes) -> None:
        if self.over:
            return  # it was answered without the rest
        self._pieces.append(piece)
        self.unread += len(piece)
        self._wake()

    def end(self) -> None:
        self._complete = True
        self._wake()

    def lose(self) -> None:
        """The client is gone."""
        self.gone = True
        self._wake()
        if self._left is not None:
            self._left.set()

    async def until_gone(self) -> None:
        """Wait until the client closes the connection before its answer. Several tasks may wait, also while another
        one receives the body."""
        if not self.gone:
            self._left = self._left or asyncio.Event()
            self._connection.read_on()
            await self._left.wait()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def receive(self) -> Scope:
        if self._continues and not self.begun and not self.gone:
            self._continues = False
            self._connection.write(_CONTINUE)
        while not (self.gone or self.over or self._pieces or (self._complete and not self._told)):
            self._waiting = asyncio.get_running_loop().create_future()
            self._connection.read_on()  # which may find that the rest is here
            await self._waiting
        if self.gone or self.over:
            return {"type": "http.disconnect"}
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self.unread = 0
        self._told = self._complete
        return {"type": "http.request", "body": body, "more_body": not self._complete}

    # --- the answer ------------------------------------------------------------------------------------------------

    async def send(self, event: Scope) -> None:
        if event["type"] == "http.response.start":
            self._head = self._encoded(event["status"], event.get("headers", ()))
            return
        if self._connection.full is not None:
            await self._connection.full
        more = event.get("more_body", False)
        if self.gone and more:
            raise CallerGone  # or it would be made to its end for nobody
        if self.gone or self.over:
            return
        if "buffers" in event:
            self._connection.write_all(self._framed_buffers(event["buffers"]))
        else:
            # The head goes with the first piece of the body: one write.
            self._connection.write(self._head + self._framed(event.get("body", b""), more))
        self._head, self.begun = b"", True
        if not more:
            self.over = True
            self._wake()
            self._connection.answered(self)

    def _encoded(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        measured = False
        for name, value in headers:
            if b"\n" in value or b"\r" in value:
                raise ValueError(f"the header {name!r} would be more than one")
            measured = measured or name == b"content-length"
            lines.append(b"%b: %b\r\n" % (name, value))
        if not measured and self.scope["method"] != "HEAD" and status not in (204, 304):
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        # Whoever was not told to go on may send the body all the same, or the next request: nobody can tell.
        self.keep_alive = self.keep_alive and not self._continues
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _framed_buffers(self, buffers: list[memoryview]) -> list[bytes | memoryview]:
        """What an application without a length has in pieces, of which there are more."""
        size = sum(buffer.nbytes for buffer in buffers)
        if not size or self.scope["method"] == "HEAD":
            return [self._head]
        if not self._chunked:
            return [self._head, *buffers]
        return [self._head + b"%x\r\n" % size, *buffers, b"\r\n"]

    def _framed(self, body: bytes, more: bool) -> bytes:
        if self.scope["method"] == "HEAD":
            return b""
        if not self._chunked:
            return body
        piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return piece if more else piece + b"0\r\n\r\n"
