"""The requests of a broker of a cluster: those to a store by its name, and those that leave it to the broker which."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from tallystick.api.access.gate import Gate, source_of
from tallystick.api.access.refusal_log import tell_refusal
from tallystick.api.access.table import DOOR_WAYS
from tallystick.api.cluster.asking import CLIENT_GONE
from tallystick.api.cluster.callers import judged
from tallystick.api.cluster.dividing import StorePlaces
from tallystick.api.cluster.door import ClusterDoor
from tallystick.api.cluster.owners import DOOR, PREFIX, Owners
from tallystick.api.cluster.queues import local
from tallystick.api.dtm.http import PREFIX as DTM_PREFIX
from tallystick.api.dtm.http import DtmHttp
from tallystick.api.http.native import NativeApi, problem_answer
from tallystick.api.serving.asgi import CallerGone, Receive, Scope, Send
from tallystick.core.errors import Unauthenticated
from tallystick.core.wire import ARROW

log = logging.getLogger("tallystick.api")

_PART = re.compile(r"/v1/parts/([^/]+)")
_QUEUE = re.compile(r"(/v1/topics/[^/]+/queues/)(\d{1,19})/messages")


class ClusterApi:
    """An ASGI application."""

    def __init__(self, owners: Owners, door: ClusterDoor, drain_seconds: float) -> None:
        self._owners, self._callers = owners, door.callers
        self._door, self._native, self._dtm = door, NativeApi(door), DtmHttp(door)
        self._gate = Gate(door)
        self._drain_seconds = drain_seconds
        self._leaving: asyncio.Task[None] | None = None
        self.about = f"broker {owners.node.membership.me.id} of a cluster with {len(owners.stores())} stores"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(event: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(event)

        try:
            await self._answer(scope, receive, noted)
        except CallerGone:
            raise
        except Exception as error:
            if begun:  # half of an answer cannot be mended: the connection ends
                raise CallerGone from error
            answer = problem_answer(error)
            self._door.answered(self._route(_divided(scope)[1])[0].rpartition(" ")[2], answer.status)
            await answer.send(send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope = self._callers.vouched(scope)
        except Unauthenticated as error:
            tell_refusal(error.status, self._route(_divided(scope)[1])[0], source_of(scope))
            raise
        CLIENT_GONE.set(scope.get("client_gone"))
        store, inside = _divided(scope)
        if store is not None:
            await self._by_owner(store, inside, receive, send)
            return
        straight = self._straight(scope)
        if straight is not None:
            store, path, query = straight
            await self._by_owner(store, {**_at(scope, path), "query_string": query}, receive, send)
        elif scope["path"].startswith(DTM_PREFIX):
            await self._dtm(scope, receive, send)
        else:
            await self._native(scope, receive, send)

    async def _by_owner(self, store: str, scope: Scope, receive: Receive, send: Send) -> None:
        """What is asked of one store. Whoever sends it is let in here if another broker is to answer: that one has our
        word for it, and counts nothing that we have. The ways of a store's door are for brokers alone, whoever owns
        it."""
        at_door = scope["path"].startswith(DOOR)
        if at_door:
            judged_there = scope.get("of_peer") == "door"
        else:
            judged_there = "caller" in scope or self._owners.api(store) is not None
        if judged_there:
            await self._owners.answer(store, scope, receive, send)
            return
        with await self._gate.visit(scope, receive, send, *self._route(scope)) as visit:
            await self._owners.answer(store, judged(scope), visit.receive, visit.send)

    def _route(self, scope: Scope) -> tuple[str, dict[str, str]]:
        """As the owner will find it."""
        if scope["path"].startswith(DOOR):
            return DOOR_WAYS, {}
        return (self._dtm if scope["path"].startswith(DTM_PREFIX) else self._native).named(scope)

    def _straight(self, scope: Scope) -> tuple[str, str, bytes] | None:
        """Streams that belong to one store go there as they come: a part that is sent, a queue that is read, whose rows
        have the number that it has in the cluster."""
        stores, query = self._owners.stores(), scope["query_string"]
        if (part := _PART.fullmatch(scope["path"])) is not None:
            return StorePlaces(stores, lambda: stores[0]).of_gid(part[1]), scope["path"], query
        if (queue := _QUEUE.fullmatch(scope["path"])) is not None and _wants_arrow(scope):
            number, inside = local(int(queue[2]), len(stores))
            called = b"called=" + queue[2].encode()
            return stores[number], f"{queue[1]}{inside}/messages", query + b"&" + called if query else called
        return None

    # --- the end ---------------------------------------------------------------------------------------------------

    def end(self, then: Callable[[], None]) -> None:
        """Hand the stores over; until the others have them, requests are taken and handed on."""
        if self._leaving is None:
            log.info("leaving the cluster")
            self._leaving = asyncio.create_task(self._leave(then))

    async def _leave(self, then: Callable[[], None]) -> None:
        self._owners.node.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                await self._owners.node.left.wait()
        if self._owners.node.left.is_set():
            log.info("left the cluster: no store is open here any more")
        else:
            trouble = self._owners.node.trouble or "requests or a release of a store took too long"
            log.warning(
                "leaving the cluster: not all stores are handed over after %g s: %s. Other brokers claim them later.",
                self._drain_seconds,
                trouble,
            )
        then()

    async def close(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.gather(self._leaving, return_exceptions=True)


def _divided(scope: Scope) -> tuple[str | None, Scope]:
    """The store that a request names, if it does, and what is asked of that."""
    path: str = scope["path"]
    if not path.startswith(PREFIX):
        return None, scope
    store, _, rest = path.removeprefix(PREFIX).partition("/")
    return store, _at(scope, f"/{rest}")


def _at(scope: Scope, path: str) -> Scope:
    """Asks for a path. As it is handed on it is written anew, so that the owner reads what was judged here."""
    return {**scope, "path": path, "raw_path": quote(path).encode()}


def _wants_arrow(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return ARROW.encode() in headers.get(b"accept", headers.get(b"content-type", b""))
