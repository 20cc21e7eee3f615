"""A door's ways, asked of whichever broker owns a store: called where it is our own, else told by name over HTTP.

What goes over the wire is decoded by the types that the door's own methods declare.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeVar, get_type_hints

import msgspec

from tallystick.api.cluster.owners import DOOR, Owners
from tallystick.api.http.native import problem_answer
from tallystick.api.serving.asgi import CallerGone, HttpAnswer, Receive, Scope, Send, read_raw, while_connected
from tallystick.api.serving.problems import DECODING, undecodable
from tallystick.api.store_api import StoreApi
from tallystick.broker.caller import Caller
from tallystick.broker.door import BrokerDoor
from tallystick.core.access import Evidence, Identity
from tallystick.core.errors import BrokerUnavailable, Forbidden, NotFound, error_from_code
from tallystick.core.ops import ClientOp
from tallystick.core.wire import MSGPACK, Problem

T = TypeVar("T")
G = TypeVar("G", covariant=True)
CALLER_OF = BrokerDoor.caller_of.__name__  # what a broker asks for itself: who somebody is
# What may be asked over HTTP. The rest needs no store, or is read as a stream.
METHODS = frozenset(
    method.__name__
    for method in (
        BrokerDoor.audit,
        BrokerDoor.batch,
        BrokerDoor.called_hosts,
        BrokerDoor.call_topics,
        BrokerDoor.calls,
        BrokerDoor.commit_of_group,
        BrokerDoor.delete_topic,
        BrokerDoor.do_and_show,
        BrokerDoor.drop_call_topic,
        BrokerDoor.drop_token,
        BrokerDoor.ends,
        BrokerDoor.fetch,
        BrokerDoor.forget_app,
        BrokerDoor.give_turn_back,
        BrokerDoor.groups,
        BrokerDoor.hurry,
        BrokerDoor.hurry_all,
        BrokerDoor.info,
        BrokerDoor.ledger,
        BrokerDoor.ledgers,
        BrokerDoor.list_calls,
        BrokerDoor.offsets_at,
        BrokerDoor.page,
        BrokerDoor.poll_checks,
        BrokerDoor.put_token,
        BrokerDoor.put_topic,
        BrokerDoor.receive,
        BrokerDoor.reset_group,
        BrokerDoor.resolve,
        BrokerDoor.resume,
        BrokerDoor.resume_calls,
        BrokerDoor.splits,
        BrokerDoor.stop_calls,
        BrokerDoor.stored_offsets,
        BrokerDoor.subscribe,
        BrokerDoor.take_turn,
        BrokerDoor.tokens,
        BrokerDoor.topic,
        BrokerDoor.transaction,
        BrokerDoor.transactions,
        BrokerDoor.trim,
        BrokerDoor.unsubscribe,
        BrokerDoor.wait_for_calls,
        BrokerDoor.whole,
        BrokerDoor.wholes,
    )
)
POLLS = frozenset(("ends", "fetch", "poll_checks", "receive", "wait_for_calls"))
ROOM = 2  # times the largest request: the same operations may take more bytes in this form than in the caller's


CLIENT_GONE: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("client_gone", default=None)
"""Returns once the client of the current request has closed its connection.

Questions to other brokers end then. None for work that must come to its end, or that has no client.
"""


def finish_without_client() -> None:
    """Let the current request come to its end although its client goes: half of it must not stay undone."""
    CLIENT_GONE.set(None)


class Method(Protocol[G]):
    """One of a door's ways, as its class has it."""

    __name__: str

    def __call__(self, door: BrokerDoor, /, *args: Any) -> Coroutine[Any, Any, G]: ...


class DoorWay(NamedTuple):
    takes: Any
    gives: Any


@functools.cache
def way(method: str) -> DoorWay:
    """The types of a method's arguments and of what it gives."""
    hints = get_type_hints(getattr(BrokerDoor, method))
    gives = hints.pop("return")
    if method == "batch":
        hints["ops"] = list[ClientOp]  # columns travel as they came, see `api.py`
    return DoorWay(tuple[tuple(hints.values())], gives)  # type: ignore[misc]


class Asking:
    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    async def ask(self, store: str, caller: Caller, method: Method[T], *args: Any) -> T:
        door = self._owners.door(store)
        if door is not None:
            return await method(door.of(caller), *args)
        answer: T = await self._tell(store, caller, method.__name__, args, way(method.__name__).gives)
        return answer

    @property
    def me(self) -> Caller:
        """For what this broker asks for itself, and not for whoever has asked it."""
        return Caller(Identity(self._owners.node.membership.me.id, "broker", ()))

    async def identity(self, store: str, evidence: Evidence) -> Identity:
        """Who shows this, as another broker finds."""
        found: Identity = await self._tell(store, self.me, CALLER_OF, (evidence,), Identity)
        return found

    async def _tell(self, store: str, caller: Caller, method: str, args: Any, gives: Any) -> Any:
        caught = _Caught(msgspec.msgpack.encode(args))
        path = DOOR + method
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", MSGPACK.encode()), (b"content-length", b"%d" % len(caught.body))],
            "caller": caller,
            "of_peer": "door",
        }
        await self._owners.answer(store, scope, caught.receive, caught.send)
        return caught.result(gives)


class _Caught:
    """Stands for a caller: says the body, and keeps the answer."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._said = False
        self._status = 0
        self._pieces: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        if self._said:
            gone = CLIENT_GONE.get()
            await (asyncio.Event().wait() if gone is None else gone())
            return {"type": "http.disconnect"}
        self._said = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, event: Any) -> None:
        self._status = event.get("status", self._status)
        self._pieces.append(event.get("body", b""))

    def result(self, gives: Any) -> Any:
        content = b"".join(self._pieces)
        if self._status == 200:
            return msgspec.msgpack.decode(content, type=gives)
        try:
            problem = msgspec.json.decode(content, type=Problem)
        except msgspec.DecodeError as error:
            raise BrokerUnavailable(f"the owner of the store answered {self._status}") from error
        raise error_from_code(problem.code, problem.detail, problem.field)


class DoorApi(StoreApi):
    """The other end: a store's protocols, and besides them what other brokers of the cluster ask for."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(DOOR):
            await super().__call__(scope, receive, send)
            return
        try:
            answer = HttpAnswer(await self._carried_out(scope, receive), MSGPACK)
        except CallerGone:
            return
        except Exception as error:
            answer = problem_answer(error)
        await answer.send(send)

    async def _carried_out(self, scope: Scope, receive: Receive) -> bytes:
        door = self._door_for(scope)
        method = scope["path"].removeprefix(DOOR)
        if method == CALLER_OF and not door.open:
            return await self._identified(scope["caller"], await self._said(scope, receive, tuple[Evidence]))
        if method not in METHODS:
            raise NotFound(f"there is no way {method[:40]!r} through a door")
        args = await self._said(scope, receive, way(method).takes)
        work = getattr(door, method)(*args)
        return msgspec.msgpack.encode(await (while_connected(receive, work) if method in POLLS else work))

    async def _said(self, scope: Scope, receive: Receive, takes: Any) -> Any:
        body = await read_raw(receive, dict(scope["headers"]), ROOM * self.door.limits.request_bytes)
        try:
            return msgspec.msgpack.decode(body, type=takes)
        except DECODING as error:
            raise undecodable(error) from error

    def _door_for(self, scope: Scope) -> BrokerDoor:
        """For whom another broker vouches, with what that one may. Nobody else has business here, nor does a request
        that was only handed on."""
        if scope.get("of_peer") != "door":
            raise Forbidden(f"{DOOR} is for the other brokers of the cluster, which say who is asking")
        return self.door.of(scope["caller"])

    async def _identified(self, asking: Caller, shown: tuple[Evidence]) -> bytes:
        if asking.identity.kind != "broker":
            raise Forbidden("only a broker asks who somebody is")
        return msgspec.msgpack.encode((await self.door.caller_of(*shown)).identity)
