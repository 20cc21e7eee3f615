"""The same for servers that speak gRPC, of threads and of asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from tallystick.client.proof.verifier import Verifier
from tallystick.core.errors import Unproven
from tallystick.core.signing import GRPC_METHOD, SIGNATURE_HEADER, grpc_path

_NAME = SIGNATURE_HEADER.lower()
_REFUSED = grpc.StatusCode.UNAUTHENTICATED
Handler = Any  # grpc.RpcMethodHandler, whose types do not say what it has


class _Verifying:
    """What both have: a handler for the raw bytes of a request, in front of the one that gets the message."""

    def __init__(self, verifier: Verifier, methods: tuple[str, ...]) -> None:
        self._verifier, self._methods = verifier, methods

    def guarded(self, handler: Handler, details: Any) -> Handler:
        method: str = details.method
        if handler is None or not method.startswith(self._methods):
            return handler
        metadata = tuple(details.invocation_metadata or ())
        if handler.request_streaming or handler.response_streaming:
            return _refusing("a broker makes no calls of streams")

        def message(body: bytes) -> Any:
            given = [value for name, value in metadata if name == _NAME]
            signature = given[0] if len(given) == 1 else None
            self._verifier.verify(_text(signature), GRPC_METHOD, grpc_path(method, metadata), body)
            return body if handler.request_deserializer is None else handler.request_deserializer(body)

        behaviour = handler.unary_unary
        make = _asynchronous if inspect.iscoroutinefunction(behaviour) else _synchronous
        # No deserializer: the bytes come as they were signed.
        return grpc.unary_unary_rpc_method_handler(
            make(behaviour, message), response_serializer=handler.response_serializer
        )


class ThreadInterceptor(_Verifying, grpc.ServerInterceptor):
    """For `grpc.server(..., interceptors=[...])`."""

    def intercept_service(self, continuation: Callable[[Any], Handler], handler_call_details: Any) -> Handler:
        return self.guarded(continuation(handler_call_details), handler_call_details)


class LoopInterceptor(_Verifying, grpc.aio.ServerInterceptor):
    """For `grpc.aio.server(interceptors=[...])`."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], handler_call_details: Any
    ) -> Handler:
        return self.guarded(await continuation(handler_call_details), handler_call_details)


def _synchronous(behaviour: Callable[..., Any], message: Callable[[bytes], Any]) -> Callable[..., Any]:
    def answer(body: bytes, context: Any) -> Any:
        try:
            asked = message(body)
        except Unproven as refusal:
            context.abort(_REFUSED, refusal.detail)
        return behaviour(asked, context)

    return answer


def _asynchronous(behaviour: Callable[..., Any], message: Callable[[bytes], Any]) -> Callable[..., Any]:
    async def answer(body: bytes, context: Any) -> Any:
        try:
            asked = message(body)
        except Unproven as refusal:
            await context.abort(_REFUSED, refusal.detail)
        return await behaviour(asked, context)

    return answer


def _refusing(why: str) -> Handler:
    def answer(_: bytes, context: Any) -> Any:
        context.abort(_REFUSED, why)

    return grpc.unary_unary_rpc_method_handler(answer)


def _text(value: str | bytes | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value
