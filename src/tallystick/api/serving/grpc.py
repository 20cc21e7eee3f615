"""A gRPC server in the broker's own event loop, for the services of any protocol, unary and streaming alike."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import grpc
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection

from tallystick.api.serving.grpc_border import Border, BorderLimits, Enter
from tallystick.api.serving.grpc_evidence import Context
from tallystick.api.serving.tls import LoadedTls, Tls
from tallystick.core.errors import InvalidRequest

MAX_STATUS_TEXT = 1_000  # a status travels in the trailers, and many clients take no more than 8 KiB of those
KEEPALIVE_MS, KEEPALIVE_ANSWER_MS = 60_000, 20_000
CERTIFIED_AGE_MS, CERTIFIED_GRACE_MS = 3_600_000, 60_000
"""A client's certificate is verified when its connection is made: so it is made anew now and then."""

T = TypeVar("T")
# Takes a message, or an iterator of them where the client streams; a coroutine of its reply, or an iterator of replies
# where the server streams.
Method = Callable[[Any], Any]

_MADE: dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[bytes, bytes]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class GrpcService:
    """A service as its description has it, and what carries its methods out.

    `refuse` turns whatever a method raises into a status and a text; `count` is told each method and its status.
    """

    def __init__(
        self,
        described: ServiceDescriptor,
        methods: Mapping[str, Method],
        refuse: Callable[[Exception], tuple[grpc.StatusCode, str]],
        count: Callable[[str, str], None],
    ) -> None:
        self.described = described
        self._methods, self._refuse, self._count = methods, refuse, count
        self._under_way: set[asyncio.Task[Any]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {method.name: self._handler_of(method) for method in self.described.methods}
        return grpc.method_handlers_generic_handler(self.described.full_name, methods)

    def _handler_of(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[bytes, bytes]:
        act, kind = self._methods[method.name], GetMessageClass(method.input_type)
        route = f"/{self.described.full_name}/{method.name}"

        def given(body: Any) -> Any:
            return _each(kind, body) if method.client_streaming else _decoded(kind, body)

        async def answer(body: Any, context: Context) -> bytes:
            try:
                reply: bytes = (await self._whole(act(given(body)))).SerializeToString()
            except Exception as error:
                await self._abort(context, route, error)
            self._count(route, "OK")
            return reply

        async def stream(body: Any, context: Context) -> AsyncIterator[bytes]:
            try:
                async for reply in act(given(body)):
                    yield reply.SerializeToString()
            except Exception as error:
                await self._abort(context, route, error)
            self._count(route, "OK")

        made = _MADE[method.client_streaming, method.server_streaming]
        return made(stream if method.server_streaming else answer)

    async def _abort(self, context: Context, route: str, error: Exception) -> NoReturn:
        code, text = self._refuse(error)
        self._count(route, code.name)
        await context.abort(code, text[:MAX_STATUS_TEXT])

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """A client that goes away cancels its call, but what has begun is carried out to its end."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._unanswered)
            raise

    def _unanswered(self, task: asyncio.Task[Any]) -> None:
        """Take the error that the client did not wait for. The log has what is no refusal."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._refuse(error)

    async def close(self) -> None:
        """Give up what is still waited for by nobody. What the writer was given, it carries out all the same."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)


def _decoded(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise InvalidRequest(f"the message cannot be decoded as {kind.DESCRIPTOR.full_name}: {error}") from error


async def _each(kind: Any, bodies: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for body in bodies:
        yield _decoded(kind, body)


class GrpcLimits(NamedTuple):
    """Of all clients together and of one address, and how long each may take to begin, for a message, without a call,
    and to end."""

    message_bytes: int
    calls: int
    connections: int
    handshake_seconds: float
    drain_seconds: float
    calls_of_one: int = 2_000
    message_seconds: float = 60.0
    idle_seconds: float = 75.0


class GrpcServer:
    """Answers on the addresses that `sockets` have reserved, on as many ports as there are: bound, but not listening.

    gRPC takes no sockets of others. It binds the same addresses beside them, which the kernel allows while nobody
    listens there; so a taken port was told before the store was opened, and port 0 has become a number.
    """

    def __init__(self, sockets: Sequence[socket.socket], limits: GrpcLimits, tls: Tls) -> None:
        self._sockets, self._limits, self._tls = sockets, limits, tls
        self._options = _options(limits, tls)
        self._server: grpc.aio.Server | None = None
        self._services: Sequence[GrpcService] = ()

    async def start(
        self,
        services: Sequence[GrpcService],
        enter: Enter | None = None,
        refused: Callable[[str, str], None] = lambda _route, _code: None,
    ) -> None:
        """Every call is first let in by `enter`; `refused` is told of what does not get to a service. Raises OSError if
        another program began to listen on a port since it was reserved."""
        self._services = services
        limits = BorderLimits(self._limits.calls_of_one, self._limits.message_seconds)
        border = [] if enter is None else [Border(enter, refused, limits)]
        self._server = grpc.aio.server(
            interceptors=border, options=self._options, maximum_concurrent_rpcs=self._limits.calls
        )
        self._server.add_generic_rpc_handlers(tuple(service.handler() for service in services))
        names = (*(service.described.full_name for service in services), reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server, _pool_of(services))
        for one in self._sockets:
            _listen(self._server, one, self._tls)
        await self._server.start()

    async def stop(self, seconds: float | None = None) -> None:
        """No new calls; those under way may take the drain's time, or this. May be called more than once."""
        if self._server is not None:
            await self._server.stop(self._limits.drain_seconds if seconds is None else seconds)
        for service in self._services:
            await service.close()


def _options(limits: GrpcLimits, tls: Tls) -> list[tuple[str, int]]:
    options = [
        ("grpc.so_reuseport", 0),  # on by default: two brokers would share one port, and neither would know
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_concurrent_streams", limits.calls_of_one),
        ("grpc.http2.bdp_probe", 0),  # it has clients send megabytes ahead that nobody has asked to read
        ("grpc.server_handshake_timeout_ms", int(limits.handshake_seconds * 1000)),
        ("grpc.max_connection_idle_ms", int(limits.idle_seconds * 1000)),
        # Whoever has calls under way and does not answer to this is gone.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_ANSWER_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_ANSWER_MS),  # or it is a minute, whatever the line above says
    ]
    if tls.now.client_ca is not None:
        options += [
            ("grpc.max_connection_age_ms", CERTIFIED_AGE_MS),
            ("grpc.max_connection_age_grace_ms", CERTIFIED_GRACE_MS),
        ]
    return options


def _listen(server: grpc.aio.Server, reserved: socket.socket, tls: Tls) -> None:
    host, port = reserved.getsockname()[:2]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls.on:
            server.add_secure_port(place, _credentials(tls))
        else:
            server.add_insecure_port(place)
    except RuntimeError as error:  # which does not say why; there is one reason left
        raise OSError(errno.EADDRINUSE, str(error)) from error


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    """Of one port: each is told by itself when the certificates were exchanged."""
    told = tls.now

    def exchanged() -> grpc.ServerCertificateConfiguration | None:
        nonlocal told
        if tls.now is told:
            return None
        told = tls.now
        return _certificates(told)

    # None says that nothing has changed, which gRPC's documentation knows and its types do not.
    fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], exchanged)
    return grpc.dynamic_ssl_server_credentials(_certificates(told), fetch, tls.client_required)


def _certificates(loaded: LoadedTls) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.chain)], loaded.client_ca)


def _pool_of(services: Sequence[GrpcService]) -> DescriptorPool:
    """The descriptions of all services together: reflection takes one pool, and each protocol has its own."""
    pool = DescriptorPool()
    added: set[str] = set()

    def add(file: FileDescriptor) -> None:
        if file.name not in added:
            added.add(file.name)
            for needed in file.dependencies:
                add(needed)
            written = FileDescriptorProto()
            file.CopyToProto(written)
            pool.Add(written)

    for service in services:
        add(service.described.file)
    return pool
