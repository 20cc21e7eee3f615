"""The gate of every protocol: who sends a request, whether its route is for them, and how much they may ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple

from tallystick.api.access.browsers import refuse_other_sites
from tallystick.api.access.limits import MOST_KEPT, Counted, Traffic
from tallystick.api.access.refusal_log import tell_refusal
from tallystick.api.access.table import TABLE, Needs
from tallystick.api.serving.asgi import Receive, Scope, Send
from tallystick.broker.caller import Caller, nobody
from tallystick.broker.door import BrokerDoor
from tallystick.core.access import Evidence
from tallystick.core.errors import Forbidden, Unauthenticated
from tallystick.core.names import check_app, check_gid, check_name

_CHECKS: Mapping[str, Callable[[str, str], str]] = {
    "topic": check_name,
    "group": check_name,
    "app": check_app,
    "gid": check_gid,
}
_traffic = Traffic()  # of this process, whatever its callers ask of which of its stores


class Appearance(NamedTuple):
    """What a request shows of who sends it. `evidence` is asked only where somebody is to be known; over gRPC there are
    no `headers` to look at, because no browser speaks it."""

    source: str
    evidence: Callable[[], Evidence]
    method: str = "POST"
    headers: Mapping[bytes, bytes] = {}


async def let_in(
    door: BrokerDoor, route: str, shown: Appearance, given: Mapping[str, str]
) -> tuple[Caller, Counted | None]:
    """The sender of a request, at the broker that it first comes to, with a place among what they may have under way.
    Raises what it is refused with, which the log has been told then."""
    name = ""
    try:
        needs = needs_of(route)
        _refuse_other_sites(door, needs, shown)
        if needs.whom == "open" and not door.open:
            return nobody(shown.source), None
        caller = Caller(source=shown.source) if door.open else await door.caller_of(shown.evidence())
        name = "" if door.open else caller.identity.name
        check(needs, caller, given)
    except (Unauthenticated, Forbidden) as error:
        tell_refusal(error.status, route, shown.source, name)
        raise
    return caller, counted(caller)


def _refuse_other_sites(door: BrokerDoor, needs: Needs, shown: Appearance) -> None:
    refuse_other_sites(
        shown.method,
        shown.headers,
        is_open=needs.whom == "open",
        changes=needs.changes,
        proven=not door.open and bool(shown.headers.get(b"authorization")),
        hosts=door.browser_hosts,
    )


class LetIn:
    """A request that was let in: the door for whoever sent it, and the ways that count what goes through them."""

    __slots__ = ("_counted", "door", "receive", "send")

    def __init__(self, door: BrokerDoor, receive: Receive, send: Send, counted: Counted | None = None) -> None:
        self.door, self._counted = door, counted
        self.receive = receive if counted is None else counted.receiving(receive)
        self.send = send if counted is None else counted.sending(send)

    def __enter__(self) -> LetIn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._counted is not None:
            self._counted.leave()


class Gate:
    def __init__(self, door: BrokerDoor) -> None:
        self._door = door
        self._open_doors: dict[str, BrokerDoor] = {}

    async def visit(self, scope: Scope, receive: Receive, send: Send, route: str, given: Mapping[str, str]) -> LetIn:
        """Let a request in, before its body is read. `route` is how the table calls what would carry it out, `given`
        has what its path names. Raises what it is refused with."""
        caller = scope.get("caller")
        if caller is not None:  # who was let in, and counted, where the request first came to
            self._check(route, caller, given)
            return LetIn(self._door.of(caller), receive, send)
        shown = Appearance(source_of(scope), lambda: evidence_of(scope), scope["method"], dict(scope["headers"]))
        caller, place = await let_in(self._door, route, shown, given)
        if self._door.open:
            return LetIn(self._open_door(caller), receive, send)
        scope["caller"] = caller
        return LetIn(self._door.of(caller), receive, send, place)

    def _check(self, route: str, caller: Caller, given: Mapping[str, str]) -> None:
        try:
            check(needs_of(route), caller, given)
        except Forbidden as error:
            tell_refusal(error.status, route, caller.source, caller.identity.name)
            raise

    def _open_door(self, caller: Caller) -> BrokerDoor:
        """For whoever asks from an address, while nobody is asked who they are: nothing is found out twice."""
        door = self._open_doors.get(caller.source)
        if door is None:
            if len(self._open_doors) >= MOST_KEPT:
                self._open_doors.clear()
            door = self._open_doors[caller.source] = self._door.of(caller)
        return door


def needs_of(route: str) -> Needs:
    needs = TABLE.get(route)
    if needs is None:
        raise Forbidden(f"{route} is for nobody: it does not stand in the table of routes")
    return needs


def check(needs: Needs, caller: Caller, given: Mapping[str, str]) -> None:
    """Raises `Forbidden` if a route is not for this caller, or not what its path names; `InvalidRequest` if that is no
    name."""
    if needs.whom == "peer":
        raise Forbidden("only the brokers of a cluster ask each other for this")
    if needs.whom == "some":
        touches = given.get(needs.touches)
        if touches is not None:
            _CHECKS[needs.touches](touches, needs.touches)  # what is no name need not be looked for in grants
        topic = touches if needs.touches == "topic" else None
        group = touches if needs.touches in ("group", "app") else None
        caller.need(*needs.permissions, topic=topic, group=group)


def counted(caller: Caller) -> Counted | None:
    """Takes a place among what the caller may have under way at once; raises `Busy` if there is none."""
    limits = caller.identity.limits
    return Counted(_traffic, caller.identity) if limits.max_in_flight or limits.bytes_per_second else None


def source_of(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def evidence_of(scope: Scope) -> Evidence:
    said = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(said) > 1:
        raise Unauthenticated("Authorization: given more than once, so nobody can tell which one counts")
    return Evidence(said[0].decode("latin-1") if said else "", source_of(scope), tuple(scope.get("tls_names", ())))
