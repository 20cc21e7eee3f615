"""Real local servers that a broker calls: one that answers as told, and some that behave badly on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Site:
    """A server whose handler can be changed while it runs; remembers what it was asked."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.port = 0
        self.requests: list[web.Request] = []
        self.bodies: list[Any] = []
        self.at_once = 0
        self.most_at_once = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if request.can_read_body:
            self.bodies.append(await request.json())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self.handler(request)
        finally:
            self.at_once -= 1


def answering(status: int, body: Any = None, **rest: Any) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        if isinstance(body, dict):
            return web.json_response(body, status=status, **rest)
        return web.Response(status=status, body=body, **rest)

    return handler


async def committed(_: web.Request) -> web.Response:
    return web.json_response({"outcome": "committed"})


@contextlib.asynccontextmanager
async def site(handler: Handler = committed, port: int = 0) -> AsyncIterator[Site]:
    made = Site(handler)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        made.port = runner.addresses[0][1]
        yield made
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def rough_site(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that speaks bytes of the test's choice; gives its URL, as if there were no TLS."""
    talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                await talk(reader, writer)
            finally:
                writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if server.is_serving():
            talks[asyncio.create_task(connected(reader, writer))] = writer
        else:
            writer.transport.abort()

    server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for one, writer in talks.items():
            one.cancel()
            # A talk that had no turn yet is cancelled before it can close anything.
            writer.transport.abort()
        await asyncio.gather(*talks, return_exceptions=True)
        # A connection that was just being accepted is made, refused above and closed in the loop's next turns; those
        # who connect are threads, which may need a moment for it.
        for _ in range(20):
            await asyncio.sleep(0.005)


async def silence(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Takes everything and says nothing, until the other side gives up."""
    while await reader.read(65_536):
        pass


def speaking(*pieces: bytes, pause: float = 0.02) -> Talk:
    """Answers the first request with these pieces, one after the other, and closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return talk


def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
