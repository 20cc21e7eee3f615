"""The methods of dtm's gRPC service: from its messages to the shared translation, and back to its status codes."""

from __future__ import annotations

from typing import Any

import grpc
import msgspec

from tallystick.api.access.grpc import door_of_call, tell_call_refused
from tallystick.api.dtm.engine import Dtm
from tallystick.api.dtm.errors import DtmError, DtmFailure, DtmForbidden, DtmOngoing, DtmRefusal, refusal_of
from tallystick.api.dtm.grpc.messages import SERVICE, DtmGidReply, Empty
from tallystick.api.dtm.translate import BinaryTrans, Trans, check_type, trans_from
from tallystick.api.serving.grpc import GrpcService
from tallystick.api.serving.problems import DECODING, undecodable
from tallystick.broker.door import BrokerDoor


def dtm_service(door: BrokerDoor) -> GrpcService:
    methods = _Methods()
    by_name = {
        "NewGid": methods.new_gid,
        "Prepare": methods.prepare,
        "Submit": methods.submit,
        "Abort": methods.abort,
        "Subscribe": methods.subscribe,
        "Unsubscribe": methods.unsubscribe,
        "DeleteTopic": methods.delete_topic,
        "RegisterBranch": methods.register_branch,
        "PrepareWorkflow": methods.prepare_workflow,
    }
    return GrpcService(SERVICE, by_name, _refuse, door.answered)


def _refuse(error: Exception) -> tuple[grpc.StatusCode, str]:
    refusal = refusal_of(error)
    if isinstance(refusal, DtmForbidden):
        tell_call_refused()
    return code_of(refusal), refusal.message


class _Methods:
    @property
    def _dtm(self) -> Dtm:
        return Dtm(door_of_call())

    async def new_gid(self, request: Any) -> Any:
        return DtmGidReply(Gid=self._dtm.new_gid())

    async def prepare(self, request: Any) -> Any:
        await self._dtm.prepare(trans_of(request), request.ByteSize())
        return Empty()

    async def submit(self, request: Any) -> Any:
        await self._dtm.submit(trans_of(request), request.ByteSize())
        return Empty()

    async def abort(self, request: Any) -> Any:
        await self._dtm.abort(trans_of(request))
        return Empty()

    async def subscribe(self, request: Any) -> Any:
        await self._dtm.subscribe(request.Topic, request.URL, request.Remark)
        return Empty()

    async def unsubscribe(self, request: Any) -> Any:
        await self._dtm.unsubscribe(request.Topic, request.URL)
        return Empty()

    async def delete_topic(self, request: Any) -> Any:
        await self._dtm.delete_topic(request.Topic)
        return Empty()

    async def register_branch(self, request: Any) -> Any:
        check_type(request.TransType)
        raise DtmError(f"unknow trans type: {request.TransType}")  # dtm's words: a message registers no branches

    async def prepare_workflow(self, request: Any) -> Any:
        check_type("workflow")


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
    if isinstance(refusal, DtmForbidden):
        return grpc.StatusCode.PERMISSION_DENIED
    # Nothing was done and the same call may succeed later: clients know this code for it.
    return grpc.StatusCode.UNAVAILABLE if refusal.retryable else grpc.StatusCode.UNKNOWN
