"""Plain HTTP/1.1 connections that are kept open, one request at a time on each: what any language's client does.

As cheap as it can be made, because it shares the machine with the broker it measures.
"""

from __future__ import annotations

import asyncio
from typing import cast
from urllib.parse import urlsplit

import httptools


class Connection(asyncio.Protocol):
    """`await connection.post(path, body)`; one at a time."""

    def __init__(self, host: str) -> None:
        self._host = host.encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of uvloop it is one in all but its class

    async def post(self, path: bytes, body: bytes, expected: int = 200) -> None:
        """Send, and wait for an answer with the status that is expected."""
        self._waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._parser, self._body = httptools.HttpResponseParser(self), b""
        head = b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % (path, self._host, len(body)) + body)
        status = await self._waiting
        if status != expected:
            raise RuntimeError(f"{path.decode()} was answered with status {status}: {self._body.decode()}")

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        self._body += piece

    def on_message_complete(self) -> None:
        self._waiting.set_result(self._parser.get_status_code())

    def connection_lost(self, error: Exception | None) -> None:
        waiting = getattr(self, "_waiting", None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error or ConnectionError("the broker closed the connection"))


async def connect(url: str) -> Connection:
    address = urlsplit(url).netloc
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(address), host, int(port))
    return connection
