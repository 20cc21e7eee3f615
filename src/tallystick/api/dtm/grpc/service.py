"""The methods of dtm's gRPC service: from its messages to the shared translation, and back to its status codes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import msgspec
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from tallystick.api.dtm.engine import Dtm
from tallystick.api.dtm.errors import DtmError, DtmFailure, DtmOngoing, DtmRefusal, refusal_of
from tallystick.api.dtm.grpc.messages import SERVICE, DtmGidReply, Empty
from tallystick.api.dtm.translate import BinaryTrans, Trans, check_type, trans_from
from tallystick.api.http.problems import DECODING, undecodable
from tallystick.broker.broker import Broker

MAX_STATUS_TEXT = 1_000  # a status travels in the trailers, and many clients take no more than 8 KiB of those

Act = Callable[[Any], Awaitable[Any]]
Context = grpc.aio.ServicerContext[bytes, bytes]


class Service:
    """dtm's methods, carried out on a broker."""

    def __init__(self, broker: Broker) -> None:
        self._dtm = Dtm(broker)
        self._requests = broker.metrics.requests
        self._under_way: set[asyncio.Future[Any]] = set()
        self._acts: dict[str, Act] = {
            "NewGid": self._new_gid,
            "Prepare": self._prepare,
            "Submit": self._submit,
            "Abort": self._abort,
            "Subscribe": self._subscribe,
            "Unsubscribe": self._unsubscribe,
            "DeleteTopic": self._delete_topic,
            "RegisterBranch": self._register_branch,
            "PrepareWorkflow": self._prepare_workflow,
        }

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {method.name: self._handler_of(method) for method in SERVICE.methods}
        return grpc.method_handlers_generic_handler(SERVICE.full_name, methods)

    def _handler_of(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[bytes, bytes]:
        kind: Any = GetMessageClass(method.input_type)
        act = self._acts[method.name]
        route = f"/{SERVICE.full_name}/{method.name}"

        async def answer(body: bytes, context: Context) -> bytes:
            try:
                reply: bytes = (await self._whole(act, _decoded(kind, body))).SerializeToString()
            except Exception as error:
                refusal = refusal_of(error)
                code = code_of(refusal)
                self._requests.labels(route, code.name).inc()
                await context.abort(code, refusal.message[:MAX_STATUS_TEXT])
            self._requests.labels(route, "OK").inc()
            return reply

        return grpc.unary_unary_rpc_method_handler(answer)

    async def _whole(self, act: Act, request: Any) -> Any:
        """A client that goes away cancels its call, but what has begun is carried out to its end."""
        task = asyncio.ensure_future(act(request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Give up what is still waited for by nobody. What the writer was given, it carries out all the same."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    # --- the methods -------------------------------------------------------------------------------------------

    async def _new_gid(self, request: Any) -> Any:
        return DtmGidReply(Gid=self._dtm.new_gid())

    async def _prepare(self, request: Any) -> Any:
        await self._dtm.prepare(trans_of(request), request.ByteSize())
        return Empty()

    async def _submit(self, request: Any) -> Any:
        await self._dtm.submit(trans_of(request), request.ByteSize())
        return Empty()

    async def _abort(self, request: Any) -> Any:
        await self._dtm.abort(trans_of(request))
        return Empty()

    async def _subscribe(self, request: Any) -> Any:
        await self._dtm.subscribe(request.Topic, request.URL, request.Remark)
        return Empty()

    async def _unsubscribe(self, request: Any) -> Any:
        await self._dtm.unsubscribe(request.Topic, request.URL)
        return Empty()

    async def _delete_topic(self, request: Any) -> Any:
        await self._dtm.delete_topic(request.Topic)
        return Empty()

    async def _register_branch(self, request: Any) -> Any:
        check_type(request.TransType)
        raise DtmError(f"unknow trans type: {request.TransType}")  # dtm's words: a message registers no branches

    async def _prepare_workflow(self, request: Any) -> Any:
        check_type("workflow")


def _decoded(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise DtmError(f"the message cannot be decoded as {kind.DESCRIPTOR.full_name}: {error}") from error


def trans_of(request: Any) -> Trans:
    """A DtmRequest as the transaction that all of dtm's protocols share."""
    options = request.TransOptions
    fields = {
        "gid": request.Gid,
        "trans_type": request.TransType,
        "steps": _steps_of(request.Steps),
        "query_prepared": request.QueryPrepared,
        "custom_data": request.CustomedData,
        "protocol": "grpc",
        "wait_result": options.WaitResult,
        "timeout_to_fail": options.TimeoutToFail,
        "retry_interval": options.RetryInterval,
        "request_timeout": options.RequestTimeout,
        "branch_headers": dict(options.BranchHeaders),
        "bodies": list(request.BinPayloads),
    }
    return trans_from(fields, BinaryTrans)


def _steps_of(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text else []
    except DECODING as error:
        raise DtmError(f'Steps: {undecodable(error).detail}; expected is JSON such as [{{"action": "..."}}]') from error


def code_of(refusal: DtmRefusal) -> grpc.StatusCode:
    if isinstance(refusal, DtmFailure):
        return grpc.StatusCode.ABORTED
    if isinstance(refusal, DtmOngoing):
        return grpc.StatusCode.FAILED_PRECONDITION
    # Nothing was done and the same call may succeed later: clients know this code for it.
    return grpc.StatusCode.UNAVAILABLE if refusal.retryable else grpc.StatusCode.UNKNOWN
