"""A door's ways, asked of whichever broker owns a store: called where it is our own, else told by name over HTTP.

What goes over the wire is decoded by the types that the door's own methods declare.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol, TypeVar, get_type_hints

import msgspec

from tallystick.api.cluster.owners import Owners
from tallystick.api.http.native import problem_answer
from tallystick.api.serving.asgi import CallerGone, HttpAnswer, Receive, Scope, Send, read_raw, while_connected
from tallystick.api.serving.problems import DECODING, undecodable
from tallystick.api.store_api import StoreApi
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import BrokerUnavailable, NotFound, error_from_code
from tallystick.core.ops import ClientOp
from tallystick.core.wire import MSGPACK, Problem

T = TypeVar("T")
G = TypeVar("G", covariant=True)
DOOR = "/.door/"
# What may be asked over HTTP. The rest needs no store, or is read as a stream.
METHODS = frozenset(
    method.__name__
    for method in (
        BrokerDoor.batch,
        BrokerDoor.called_hosts,
        BrokerDoor.call_topics,
        BrokerDoor.calls,
        BrokerDoor.delete_topic,
        BrokerDoor.do_and_show,
        BrokerDoor.drop_call_topic,
        BrokerDoor.ends,
        BrokerDoor.fetch,
        BrokerDoor.forget_app,
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


class Method(Protocol[G]):
    """One of a door's ways, as its class has it."""

    __name__: str

    def __call__(self, door: BrokerDoor, /, *args: Any) -> Coroutine[Any, Any, G]: ...


class Way(NamedTuple):
    takes: Any
    gives: Any


@functools.cache
def way(method: str) -> Way:
    """The types of a method's arguments and of what it gives."""
    hints = get_type_hints(getattr(BrokerDoor, method))
    gives = hints.pop("return")
    if method == "batch":
        hints["ops"] = list[ClientOp]  # columns travel as they came, see `api.py`
    return Way(tuple[tuple(hints.values())], gives)  # type: ignore[misc]


class Asking:
    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    async def ask(self, store: str, method: Method[T], *args: Any) -> T:
        door = self._owners.door(store)
        if door is not None:
            return await method(door, *args)
        caught = _Caught(msgspec.msgpack.encode(args))
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "query_string": b"",
            "headers": [(b"content-type", MSGPACK.encode()), (b"content-length", b"%d" % len(caught.body))],
        }
        path = DOOR + method.__name__
        await self._owners.answer(store, path, path.encode(), scope, caught.receive, caught.send)
        answer: T = caught.result(way(method.__name__).gives)
        return answer


class _Caught:
    """Stands for a caller: says the body, and keeps the answer."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._said = False
        self._status = 0
        self._pieces: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        if self._said:
            await asyncio.Event().wait()  # it never goes away by itself
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
        method = scope["path"].removeprefix(DOOR)
        if method not in METHODS:
            raise NotFound(f"there is no way {method[:40]!r} through a door")
        body = await read_raw(receive, dict(scope["headers"]), ROOM * self.door.limits.request_bytes)
        try:
            args = msgspec.msgpack.decode(body, type=way(method).takes)
        except DECODING as error:
            raise undecodable(error) from error
        work = getattr(self.door, method)(*args)
        return msgspec.msgpack.encode(await (while_connected(receive, work) if method in POLLS else work))
