"""dtm's HTTP API, plain ASGI: prepare and submit are paid by every transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from tallystick.api.access.gate import Gate, LetIn
from tallystick.api.access.refusal_log import tell_if_refused
from tallystick.api.access.table import NOTHING
from tallystick.api.dtm import views
from tallystick.api.dtm.engine import Dtm
from tallystick.api.dtm.errors import DtmError, DtmForbidden, refusal_of
from tallystick.api.dtm.jsonrpc import JsonRpc
from tallystick.api.dtm.states import STATUSES
from tallystick.api.dtm.translate import TIMEOUT_TO_FAIL, decode_trans, known_form
from tallystick.api.serving.asgi import CallerGone, Receive, Scope, Send, answer_raw, read_raw, while_connected
from tallystick.api.serving.problems import (
    DECODING,
    RETRY_AFTER_SECONDS,
    as_tallystick_error,
    refusal_headers,
    undecodable,
)
from tallystick.broker.door import BrokerDoor
from tallystick.core.wire import JSON

BASE = "/api/dtmsvr"
PREFIX = "/api/"  # everything below it is dtm's
SPOKEN = "v1.19.0"  # the version of dtm whose protocol this is
MOST_LISTED = 1_000
MOST_SECONDS = 366 * 24 * 3600
_PING, _METRICS = "/api/ping", "/api/metrics"
_OTHERS = (_PING, _METRICS)
_SUCCESS = b'{"dtm_result":"SUCCESS"}'
_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, object]).decode


class DtmHttpRequest:
    """What a handler needs of a request. `rest` is what the path has after its route, `dtm` carries out what it wants
    for whoever sent it. `refused` is the status that a refusal has where the answer has another one."""

    __slots__ = ("_parameters", "body", "door", "dtm", "receive", "refused", "rest", "scope")

    def __init__(self, scope: Scope, visit: LetIn, body: bytes, rest: str) -> None:
        self.scope, self.receive, self.body, self.rest = scope, visit.receive, body, rest
        self.door, self.dtm = visit.door, Dtm(visit.door)
        self._parameters: dict[str, str] | None = None
        self.refused = 0

    def text(self, name: str) -> str:
        """A parameter of the query or, in a POST, of the JSON body; "" if there is none."""
        if self._parameters is None:
            query = self.scope["query_string"].decode("latin-1")
            self._parameters = self._from_body() | dict(parse_qsl(query, keep_blank_values=True))
        return self._parameters.get(name, "")

    def _from_body(self) -> dict[str, str]:
        if not self.body:
            return {}
        try:
            return {name: str(value) for name, value in _decode_object(self.body).items() if value is not None}
        except DECODING as error:
            raise DtmError(undecodable(error).detail) from error

    def number(self, name: str, default: int, most: int) -> int:
        given = self.text(name)
        if not given:
            return default
        if not (given.isascii() and given.isdigit() and len(given) < 20) or int(given) > most:
            raise DtmError(f"{name}: {given[:40]!r} is not a number from 0 to {most}")
        return int(given)


Handler = Callable[[DtmHttpRequest], Awaitable[Any]]


class DtmHttp:
    """An ASGI application for every path that begins with PREFIX. A handler's answer is encoded as JSON; None is
    dtm's SUCCESS."""

    def __init__(self, door: BrokerDoor) -> None:
        self._door, self._gate = door, Gate(door)
        read = ("GET",)
        write = ("POST",)
        # dtm's clients change topics and times by GET. POST does the same, for those who can choose.
        either = ("GET", "POST")
        self._routes: dict[tuple[str, str], Handler] = {}
        self._add(write, "prepare", self._prepare)
        self._add(write, "submit", self._submit)
        self._add(write, "abort", self._abort)
        self._add(write, "forceStop", self._force_stop)
        self._add(write, "resetNextCronTime", self._reset_next)
        self._add(either, "resetCronTime", self._reset_all)
        self._add(read, "newGid", self._new_gid)
        self._add(read, "query", self._query)
        self._add(read, "all", self._all)
        self._add(either, "subscribe", self._subscribe)
        self._add(either, "unsubscribe", self._unsubscribe)
        self._add(("DELETE",), "topic/", self._delete_topic)
        self._add(read, "queryKV", self._query_kv)
        self._add(read, "scanKV", self._scan_kv)
        self._add(read, "version", self._version)
        for name in ("registerBranch", "registerXaBranch", "registerTccBranch", "prepareWorkflow"):
            self._add(write, name, self._register_branch)
        self._routes["POST", "/api/json-rpc"] = self._answer_json_rpc

    def _add(self, methods: tuple[str, ...], name: str, handler: Handler) -> None:
        for method in methods:
            self._routes[method, f"{BASE}/{name}"] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route, rest = _route_of(scope["path"])
        handler = self._routes.get((scope["method"], route))
        if handler is None and route not in _OTHERS:
            route = PREFIX  # never the path itself: a label for each would have no bound
        name = self._name(scope, route)
        try:
            visit = await self._gate.visit(scope, receive, send, name, {"topic": rest})
        except CallerGone:
            raise
        except Exception as error:
            status = await _turn_away(send, error)
        else:
            with visit:
                status = await self._answer(handler, route, rest, scope, visit)
            tell_if_refused(status, name, scope)
        self._door.answered(route, status)

    def named(self, scope: Scope) -> tuple[str, dict[str, str]]:
        """The route of a request as the table of routes has it, and what its path names."""
        route, rest = _route_of(scope["path"])
        return self._name(scope, route), {"topic": rest}

    def _name(self, scope: Scope, route: str) -> str:
        """As the table of routes has it."""
        if route == _PING:
            return f"GET {route}"  # whatever the method
        known = (scope["method"], route) in self._routes or (route == _METRICS and scope["method"] == "GET")
        return f"{scope['method']} {route}" if known else NOTHING

    async def _answer(self, handler: Handler | None, route: str, rest: str, scope: Scope, visit: LetIn) -> int:
        if handler is not None:
            return await self._handle(handler, rest, scope, visit)
        if route == _PING:
            return await _reply(visit.send, 200, b'{"msg":"pong"}')
        if route == _METRICS and scope["method"] == "GET":
            return await self._metrics(visit)
        text = f"there is no {scope['method']} {scope['path'][:200]} in dtm's API; the native API is at /docs"
        return await _reply(visit.send, 404, _encode({"message": text}))

    async def _handle(self, handler: Handler, rest: str, scope: Scope, visit: LetIn) -> int:
        try:
            body = await read_raw(visit.receive, dict(scope["headers"]), self._door.limits.request_bytes)
            asked = DtmHttpRequest(scope, visit, body, rest)
            answer = await handler(asked)
        except CallerGone:
            return await _reply(visit.send, 499, b"{}")  # nobody reads it
        except Exception as error:
            return await _refuse(visit.send, error)
        status = await _reply(visit.send, 200, _SUCCESS if answer is None else _encode(answer))
        return asked.refused or status

    # --- transactions ----------------------------------------------------------------------------------------------

    async def _prepare(self, asked: DtmHttpRequest) -> None:
        await asked.dtm.prepare(decode_trans(asked.body), len(asked.body))

    async def _submit(self, asked: DtmHttpRequest) -> None:
        trans = decode_trans(asked.body)
        submitting = asked.dtm.submit(trans, len(asked.body))
        if trans.wait_result:
            await while_connected(asked.receive, submitting)
        else:
            await submitting

    async def _abort(self, asked: DtmHttpRequest) -> None:
        await asked.dtm.abort(decode_trans(asked.body))

    async def _force_stop(self, asked: DtmHttpRequest) -> None:
        await asked.dtm.force_stop(asked.text("gid"))

    async def _reset_next(self, asked: DtmHttpRequest) -> None:
        await asked.dtm.hurry(asked.text("gid"))

    async def _reset_all(self, asked: DtmHttpRequest) -> object:
        after = asked.number("timeout", 3 * TIMEOUT_TO_FAIL, MOST_SECONDS)
        done, more = await asked.dtm.hurry_all(1000 * after, asked.number("limit", 100, 10_000))
        return {"has_remaining": more, "succeed_count": done}

    async def _new_gid(self, asked: DtmHttpRequest) -> object:
        return {"dtm_result": "SUCCESS", "gid": asked.dtm.new_gid()}

    async def _register_branch(self, asked: DtmHttpRequest) -> None:
        asked.dtm.register_branch(asked.text("trans_type"))

    # --- looking ---------------------------------------------------------------------------------------------------

    async def _query(self, asked: DtmHttpRequest) -> object:
        if not asked.text("gid"):
            raise DtmError("no gid specified")
        gid = known_form(asked.text("gid"))
        return views.NOT_FOUND if gid is None else await views.query(asked.door, gid)

    async def _all(self, asked: DtmHttpRequest) -> object:
        status = asked.text("status")
        if status not in ("", *STATUSES):
            raise DtmError(f"status: {status[:40]!r} is none of {', '.join(STATUSES)}")
        gid = known_form(asked.text("gid")) if asked.text("gid") else ""
        if gid is None or asked.text("transType") not in ("", "msg"):
            return {"transactions": [], "next_position": ""}
        wanted = views.Wanted(
            gid,
            status,
            asked.number("createTimeStart", 0, 2**62),
            asked.number("createTimeEnd", 0, 2**62),
            asked.text("position"),
            max(1, asked.number("limit", 100, MOST_LISTED)),
        )
        return await views.all_transactions(asked.door, wanted)

    async def _version(self, _: DtmHttpRequest) -> object:
        return {"version": SPOKEN, "tallystick": version("tallystick")}

    # --- topics ----------------------------------------------------------------------------------------------------

    async def _subscribe(self, asked: DtmHttpRequest) -> None:
        await asked.dtm.subscribe(asked.text("topic"), asked.text("url"), asked.text("remark"))

    async def _unsubscribe(self, asked: DtmHttpRequest) -> None:
        await asked.dtm.unsubscribe(asked.text("topic"), asked.text("url"))

    async def _delete_topic(self, asked: DtmHttpRequest) -> None:
        await asked.dtm.delete_topic(asked.rest)

    async def _query_kv(self, asked: DtmHttpRequest) -> object:
        return {"kv": await views.topics(asked.door, asked.text("cat"), asked.text("key"))}

    async def _scan_kv(self, asked: DtmHttpRequest) -> object:
        limit = max(1, asked.number("limit", 100, MOST_LISTED))
        return await views.scan_topics(asked.door, asked.text("cat"), asked.text("position"), limit)

    # --- the rest --------------------------------------------------------------------------------------------------

    async def _answer_json_rpc(self, asked: DtmHttpRequest) -> object:
        rpc = JsonRpc(asked.dtm)
        reply = await rpc.answer(asked.body)
        asked.refused = DtmForbidden.status if rpc.forbidden else 0
        return reply

    async def _metrics(self, visit: LetIn) -> int:
        try:
            content = await visit.door.metrics()
        except Exception as error:
            return await _refuse(visit.send, error)
        await answer_raw(visit.send, 200, CONTENT_TYPE_LATEST, content)
        return 200


def _route_of(path: str) -> tuple[str, str]:
    """The route's pattern, and what a path has in place of a parameter."""
    topic = f"{BASE}/topic/"
    return (topic, path[len(topic) :]) if path.startswith(topic) else (path, "")


async def _reply(send: Send, status: int, body: bytes, more: dict[str, str] | None = None) -> int:
    await answer_raw(send, status, JSON, body, more)
    return status


async def _turn_away(send: Send, error: Exception) -> int:
    """Who was not let in is told so with the status that says it, whatever dtm has for the rest."""
    known = as_tallystick_error(error)
    return await _reply(send, known.status, _encode({"message": known.detail}), refusal_headers(known))


async def _refuse(send: Send, error: Exception) -> int:
    refusal = refusal_of(error)
    content = {"message": refusal.message}
    if refusal.result:
        content = {"dtm_result": refusal.result, **content}
    more = {"Retry-After": RETRY_AFTER_SECONDS} if refusal.retryable else None
    return await _reply(send, refusal.status, _encode(content), more)
