"""The gate of a gRPC server: the same questions as over HTTP, asked of a call's metadata and its connection."""

from __future__ import annotations

from contextvars import ContextVar

import grpc

from tallystick.api.access.gate import Appearance, let_in
from tallystick.api.access.limits import Counted
from tallystick.api.access.refusal_log import tell_refusal
from tallystick.api.serving.grpc_evidence import Context, address_of, grpc_evidence
from tallystick.api.serving.problems import as_tallystick_error
from tallystick.broker.caller import Caller
from tallystick.broker.door import BrokerDoor
from tallystick.core.access import Evidence
from tallystick.core.errors import Forbidden, TallystickError, Unauthenticated

# Each call is carried out in a context of its own.
_door_of_call: ContextVar[BrokerDoor] = ContextVar("door_of_call")
_route_of_call: ContextVar[str] = ContextVar("route_of_call")
_caller_of_call: ContextVar[Caller] = ContextVar("caller_of_call")


def door_of_call() -> BrokerDoor:
    """The door for whoever has sent the call that is being carried out."""
    return _door_of_call.get()


def tell_call_refused() -> None:
    """Have the log tell that the call which is being carried out was not for whoever has sent it."""
    caller = _caller_of_call.get()
    tell_refusal(Forbidden.status, _route_of_call.get(), caller.source, caller.identity.name)


class GrpcGate:
    def __init__(self, door: BrokerDoor) -> None:
        self._door = door

    async def enter(self, route: str, context: Context) -> Counted | None:
        """Let a call in, or end it with what it is refused with. What is returned counts its bytes, until `leave`."""
        try:
            shown = Appearance(address_of(context), lambda: _evidence(context))
            caller, place = await let_in(self._door, route, shown, {})
        except Exception as error:
            known = as_tallystick_error(error)
            self._door.answered(route, _code(known).name)
            await context.abort(_code(known), known.detail)
        _door_of_call.set(self._door.of(caller))
        _route_of_call.set(route)
        _caller_of_call.set(caller)
        return place


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
