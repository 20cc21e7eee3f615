"""The border of a gRPC server: of a call nothing is read before it is let in, and then not for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, NoReturn, Protocol

import grpc

from tallystick.api.serving.crowd import neighbourhood
from tallystick.api.serving.grpc_evidence import Context, address_of
from tallystick.api.serving.grpc_messages import AwaitedMessages
from tallystick.core.errors import Busy

_MADE: dict[bool, Callable[..., grpc.RpcMethodHandler[bytes, bytes]]] = {
    False: grpc.stream_unary_rpc_method_handler,
    True: grpc.stream_stream_rpc_method_handler,
}


class Counting(Protocol):
    """Counts the bytes of a call that was let in."""

    def count(self, size: int) -> None: ...

    def leave(self) -> None: ...


Enter = Callable[[str, Context], Awaitable[Counting | None]]


class BorderLimits(NamedTuple):
    """Calls of one address at once, and how long a message may take to come."""

    calls_of_one: int
    message_seconds: float


class Border(grpc.aio.ServerInterceptor):
    """Every call of every method that is served here is let in by `enter`, which ends it if it is not; `refused` is
    told what is ended here, and with what.

    gRPC would read the message of a method that takes one before anybody is asked anything, and wait for it for ever.
    To gRPC, therefore, every method takes a stream of messages, which is the same on the wire, and one message is
    taken out of it here.
    """

    def __init__(self, enter: Enter, refused: Callable[[str, str], None], limits: BorderLimits) -> None:
        self.enter, self.refused, self.limits = enter, refused, limits
        self.by_address: Counter[str] = Counter()
        self.awaited = AwaitedMessages(limits.message_seconds)
        self._handlers: dict[str, tuple[Any, Any]] = {}  # by their methods: what is behind the border, and the border

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        inner = await continuation(details)
        if inner is None:
            return None  # there is no such method
        known = self._handlers.get(details.method)
        if known is None or known[0] is not inner:
            known = self._handlers[details.method] = inner, self._guarded(details.method, inner)
        return known[1]

    def _guarded(self, route: str, inner: Any) -> grpc.RpcMethodHandler[bytes, bytes]:
        # What takes one message or a stream of them has its own name in each of four kinds of handlers.
        act = inner.unary_unary or inner.unary_stream or inner.stream_unary or inner.stream_stream

        async def answer(_: Any, context: Context) -> Any:
            call = BorderCall(self, route, context)
            try:
                await call.enter()
                reply = await act(call.each() if inner.request_streaming else await call.only(), context)
                call.count(reply)
                return reply
            finally:
                call.leave()

        async def stream(_: Any, context: Context) -> AsyncIterator[Any]:
            call = BorderCall(self, route, context)
            try:
                await call.enter()
                async for reply in act(call.each() if inner.request_streaming else await call.only(), context):
                    call.count(reply)
                    yield reply
            finally:
                call.leave()

        made = _MADE[inner.response_streaming]
        act_guarded = stream if inner.response_streaming else answer
        return made(act_guarded, inner.request_deserializer, inner.response_serializer)


class BorderCall:
    """One call, from the border until `leave`."""

    __slots__ = ("_border", "_context", "_from", "_place", "_route")

    def __init__(self, border: Border, route: str, context: Context) -> None:
        self._border, self._route, self._context = border, route, context
        self._from: str | None = None
        self._place: Counting | None = None

    async def enter(self) -> None:
        key, border = neighbourhood(address_of(self._context)), self._border
        if border.by_address[key] >= border.limits.calls_of_one:
            text = "this address has as many calls under way as max_connections_per_address says"
            await self._end(grpc.StatusCode.UNAVAILABLE, text)
        self._from = key
        border.by_address[key] += 1
        self._place = await border.enter(self._route, self._context)

    def leave(self) -> None:
        if self._from is not None:
            count = self._border.by_address
            count[self._from] -= 1
            if not count[self._from]:
                del count[self._from]
        if self._place is not None:
            self._place.leave()

    def count(self, message: Any) -> None:
        if self._place is not None and isinstance(message, bytes):
            self._place.count(len(message))

    # --- its messages ------------------------------------------------------------------------------------------------

    async def only(self) -> Any:
        """The one message of a method that takes one. What a client sends beyond it is not read."""
        message = await self._next()
        if message is grpc.aio.EOF:
            await self._end(grpc.StatusCode.UNIMPLEMENTED, "this method takes one message, and none came")
        return message

    async def each(self) -> AsyncIterator[Any]:
        while (message := await self._next()) is not grpc.aio.EOF:
            yield message

    async def _next(self) -> Any:
        try:
            message = await self._border.awaited.read(self._context)
        except TimeoutError as late:
            await self._end(grpc.StatusCode.DEADLINE_EXCEEDED, str(late))
        except Busy as busy:
            await self._end(grpc.StatusCode.UNAVAILABLE, busy.detail)
        self.count(message)
        return message

    async def _end(self, code: grpc.StatusCode, text: str) -> NoReturn:
        self._border.refused(self._route, code.name)
        await self._context.abort(code, text)
