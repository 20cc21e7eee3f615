"""The gate of a gRPC server: the same questions as over HTTP, asked of a call's metadata and its connection."""

from __future__ import annotations

from contextvars import ContextVar

import grpc

from tallystick.api.access.gate import check, counted, needs_of
from tallystick.api.access.limits import Counted
from tallystick.api.access.refusal_log import tell_refusal
from tallystick.api.serving.grpc_evidence import Context, address_of, grpc_evidence
from tallystick.api.serving.problems import as_tallystick_error
from tallystick.broker.caller import Caller, nobody
from tallystick.broker.door import BrokerDoor
from tallystick.core.access import Evidence
from tallystick.core.errors import Forbidden, TallystickError, Unauthenticated

_door_of_call: ContextVar[BrokerDoor] = ContextVar("door_of_call")  # each call is carried out in a context of its own


def door_of_call() -> BrokerDoor:
    """The door for whoever has sent the call that is being carried out."""
    return _door_of_call.get()


class GrpcGate:
    def __init__(self, door: BrokerDoor) -> None:
        self._door = door

    async def enter(self, route: str, context: Context) -> Counted | None:
        """Let a call in, or end it with what it is refused with. What is returned counts its bytes, until `leave`."""
        try:
            caller, place = await self._caller(route, context)
        except Exception as error:
            known = as_tallystick_error(error)
            self._door.answered(route, _code(known).name)
            await context.abort(_code(known), known.detail)
        _door_of_call.set(self._door.of(caller))
        return place

    async def _caller(self, route: str, context: Context) -> tuple[Caller, Counted | None]:
        needs = needs_of(route)
        if self._door.open:
            return Caller(source=address_of(context)), None
        if needs.whom == "open":
            return nobody(address_of(context)), None
        caller = await self._known(route, context)
        try:
            check(needs, caller, {})
        except Forbidden as error:
            tell_refusal(error.status, route, caller.source, caller.identity.name)
            raise
        return caller, counted(caller)

    async def _known(self, route: str, context: Context) -> Caller:
        try:
            return await self._door.caller_of(_evidence(context))
        except Unauthenticated as error:
            tell_refusal(error.status, route, address_of(context))
            raise


def _evidence(context: Context) -> Evidence:
    if sum(name == "authorization" for name, _ in context.invocation_metadata() or ()) > 1:
        raise Unauthenticated("authorization: given more than once, so nobody can tell which one counts")
    return grpc_evidence(context)


def _code(error: TallystickError) -> grpc.StatusCode:
    if isinstance(error, Unauthenticated):
        return grpc.StatusCode.UNAUTHENTICATED
    if isinstance(error, Forbidden):
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.UNAVAILABLE if error.retryable else grpc.StatusCode.UNKNOWN
