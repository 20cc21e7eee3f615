"""Services that a broker calls: a lean HTTP one for many calls, one over gRPC, and short words to send calls."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import httptools
from inner_broker import Inside

from eventually import SECONDS, eventually_async
from tallystick.core.calls import CallPolicy, CallsView, OutgoingCall
from tallystick.core.ops import Send

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"dtm_result":"SUCCESS"}'
Unary = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]


class _Talk(asyncio.Protocol):
    def __init__(self, owner: Lean) -> None:
        self._owner = owner

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._owner.open.add(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.open.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._owner.urls.append(url.decode())

    def on_message_complete(self) -> None:
        self._transport.write(self._owner.answer)


class Lean:
    """Answers every request with the same bytes, at once; remembers what it was asked for."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.answer = OK
        self.port = 0
        self.open: set[Any] = set()
        self._server: asyncio.Server | None = None
        self._kept: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._let_go()
        self._server = await asyncio.get_running_loop().create_server(lambda: _Talk(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Gone, with all its connections: nobody listens on its port."""
        assert self._server is not None
        self._server.close()
        for transport in list(self.open):
            transport.abort()
        await asyncio.sleep(0)
        # Bound and not listening: connections are refused, and nobody else gets the port meanwhile.
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", self.port))

    def _let_go(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    async def close(self) -> None:
        if self._kept is None:
            await self.stop()
        self._let_go()


@contextlib.asynccontextmanager
async def lean() -> AsyncIterator[Lean]:
    service = Lean()
    await service.start()
    try:
        yield service
    finally:
        await service.close()


class GrpcService:
    """A gRPC server for any method, with a handler of the test's choice."""

    def __init__(self, handler: Unary) -> None:
        self.handler = handler
        self.port = 0
        self.calls: list[tuple[str, bytes, dict[str, Any]]] = []

    def url(self, method: str = "busi.Busi/TransIn", host: str = "127.0.0.1") -> str:
        return f"grpc://{host}:{self.port}/{method}"

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        async def handle(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
            self.calls.append((details.method, request, metadata))
            return await self.handler(request, context)

        return grpc.unary_unary_rpc_method_handler(handle)


async def fine(_: bytes, __: grpc.aio.ServicerContext) -> bytes:
    return b""


def ending(code: grpc.StatusCode, details: str = "") -> Unary:
    async def handler(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(code, details)
        raise AssertionError

    return handler


class _Any(grpc.GenericRpcHandler):
    def __init__(self, made: GrpcService) -> None:
        self._made = made

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return self._made.service(details)


@contextlib.asynccontextmanager
async def grpc_service(handler: Unary = fine, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[GrpcService]:
    made = GrpcService(handler)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_Any(made),))
    made.port = server.add_insecure_port(f"{host}:{port}")
    await server.start()
    try:
        yield made
    finally:
        await server.stop(None)


async def send(broker: Inside, gid: str, *urls: str, options: CallPolicy | None = None, **rest: Any) -> None:
    """A transaction of calls alone, one to each URL."""
    rest.setdefault("body", b'{"amount":30}')
    calls = [OutgoingCall(url, **rest) for url in urls]
    await broker.do(Send([], gid, calls, options))


async def send_many(broker: Inside, url: str, count: int, name: str = "g") -> list[str]:
    gids = [f"{name}{number}" for number in range(count)]
    for start in range(0, count, 500):
        ops = [Send([], gid, [OutgoingCall(url, b"{}")]) for gid in gids[start : start + 500]]
        assert {result.error for result in await broker.door.batch(ops, 1_024) if result} <= {None}
    return gids


async def calls_of(broker: Inside, gid: str) -> CallsView:
    view = await broker.look(lambda store: store.calls(gid))
    assert view is not None
    return view


async def tried(broker: Inside, gid: str, attempts: int = 1, index: int = 0) -> Any:
    """The call once it has been tried so often."""

    async def look() -> Any:
        call = (await calls_of(broker, gid)).calls[index]
        return call if call.attempts >= attempts else None

    return await eventually_async(look, f"{attempts} tries of {gid}")


async def done(broker: Inside, *gids: str, seconds: float = SECONDS) -> None:
    async def look() -> bool:
        views = await broker.look(lambda store: [store.calls(gid) for gid in gids])
        return all(view is not None and view.state == "done" for view in views)

    await eventually_async(look, f"the calls of {gids[:5]}", seconds)


async def none_waiting(broker: Inside, seconds: float = SECONDS) -> None:
    async def look() -> bool:
        return not (await broker.look(lambda store: store.counts())).calls_waiting

    await eventually_async(look, "no call waits", seconds)
