"""A route of the native API: a function, with what its own types say it takes and gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct, inspect

from tallystick.api.serving.asgi import HttpAnswer, Receive, Scope, read_raw, while_connected
from tallystick.api.serving.problems import DECODING, undecodable
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_gid, check_name
from tallystick.core.wire import JSON, MSGPACK

_encode_msgpack = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
T = TypeVar("T")
Q = TypeVar("Q", bound=Struct)
Handler = Callable[..., Awaitable[Any]]
_JSON_TOO = (JSON, "", "application/x-www-form-urlencoded", "text/plain")  # curl's defaults


class Route(Struct, frozen=True, eq=False):
    """`takes` and `gives` have the kind of the body by its media type; None stands for bytes. `also` has what is given
    with another status than the usual one."""

    method: str
    path: str
    run: Handler
    summary: str
    takes: dict[str, Any]
    gives: dict[str, Any]
    status: int
    query: type[Struct] | None
    also: dict[int, Any]
    sent: type[Struct] | None

    async def answer(self, asked: Asked) -> HttpAnswer:
        given: dict[str, Any] = {}
        if self.query is None:
            asked.refuse_parameters(())
        else:
            given["query"] = asked.query(self.query)
        if self.sent is not None:
            given["sent"] = await asked.body(self.sent)
        answer = await self.run(asked, **given)
        if isinstance(answer, HttpAnswer):
            return answer
        return HttpAnswer(b"", status=self.status) if answer is None else asked.respond(answer, self.status)


def route(
    method: str,
    path: str,
    run: Handler,
    summary: str,
    *,
    status: int = 200,
    takes: dict[str, Any] | None = None,
    gives: dict[str, Any] | None = None,
    also: dict[int, Any] | None = None,
) -> Route:
    """A route whose function takes `sent` (its body) and `query`, or neither, and returns its answer, or None, or a
    HttpAnswer where it chose the form itself: then the table says what forms there are."""
    hints = get_type_hints(run, include_extras=True)
    if takes is None:
        takes = dict.fromkeys((JSON, MSGPACK), hints["sent"]) if "sent" in hints else {}
    kinds = [kind for kind in get_args(hints["return"]) or (hints["return"],) if kind not in (HttpAnswer, NoneType)]
    if gives is None:
        gives = {media: kind for kind in kinds for media in (JSON, MSGPACK)}
    status = status if gives else 204
    return Route(method, path, run, summary, takes, gives, status, hints.get("query"), also or {}, hints.get("sent"))


class Asked:
    """One request, as the function of a route sees it."""

    __slots__ = ("_headers", "_parameters", "_path", "_receive", "door", "routes", "size")

    def __init__(
        self, scope: Scope, receive: Receive, path: dict[str, str], door: BrokerDoor, routes: tuple[Route, ...]
    ) -> None:
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._parameters = _read_query(scope["query_string"])
        self._receive, self._path, self.door, self.routes = receive, path, door, routes
        self.size = 0  # of the body, once that was read

    def path(self, name: str) -> str:
        return self._path[name]

    def number(self, name: str) -> int:
        """A part of the path that can only be a number."""
        return int(self._path[name])

    @property
    def topic(self) -> str:
        return check_name(self.path("topic"), "topic")

    @property
    def group(self) -> str:
        return check_name(self.path("group"), "group")

    @property
    def gid(self) -> str:
        return check_gid(self.path("gid"))

    def sends(self, media: str) -> bool:
        return self._sent_as() == media

    def accepts(self, media: str) -> bool:
        """Whoever does not say what it takes takes what it sends."""
        accepted = self._headers.get(b"accept")
        return self.sends(media) if accepted is None else media.encode() in accepted

    def _sent_as(self) -> str:
        return self._headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")

    def query(self, kind: type[Q]) -> Q:
        """The parameters after the question mark; errors name them."""
        self.refuse_parameters(_parameters(kind))
        given = {name: _plain(text, _parameters(kind)[name]) for name, text in self._parameters.items()}
        try:
            return msgspec.convert(given, kind)
        except msgspec.ValidationError as error:
            wrong = undecodable(error)
            if wrong.field is None:  # the one that must be there is not
                name = str(error).split("`")[1]
                raise InvalidRequest(f"{name}: say which {name}, ?{name}=...", field=name) from error
            said, expected = str(given[wrong.field])[:40], _expected(_parameters(kind)[wrong.field])
            raise InvalidRequest(f"{wrong.field}: {said!r} is {expected}", field=wrong.field) from error

    def refuse_parameters(self, known: Collection[str]) -> None:
        """Whoever writes `?limt=5` is told, instead of being given what was not asked for."""
        for name in self._parameters:
            if name not in known:
                these = f"there are {', '.join(known)}" if known else "it has none"
                raise InvalidRequest(f"{name[:80]}: no parameter of this route; {these}", field=name[:80])

    async def raw_body(self) -> bytes:
        body = await read_raw(self._receive, self._headers, self.door.limits.request_bytes)
        self.size = len(body)
        return body

    async def body(self, kind: type[T]) -> T:
        """The body as `kind`; an empty one as an object without fields."""
        body = await self.raw_body()
        sent = self._sent_as()
        try:
            if sent == MSGPACK:
                return msgspec.msgpack.decode(body or b"\x80", type=kind)
            if sent in _JSON_TOO:
                return msgspec.json.decode(body or b"{}", type=kind)
        except DECODING as error:
            raise undecodable(error) from error
        raise InvalidRequest(f"Content-Type: {sent!r} is not one of {JSON} and {MSGPACK}", field="Content-Type")

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Long work, for as long as the caller is there."""
        return await while_connected(self._receive, work)

    def respond(self, content: Struct, status: int = 200) -> HttpAnswer:
        if self.accepts(MSGPACK):
            return HttpAnswer(_encode_msgpack(content), MSGPACK, status)
        return HttpAnswer(_encode_json(content), JSON, status)


def _read_query(query: bytes) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, text in parse_qsl(query.decode("latin-1"), keep_blank_values=True) if query else ():
        if name in given:
            raise InvalidRequest(f"{name[:80]}: given more than once", field=name[:80])
        given[name] = text
    return given


@cache
def _parameters(kind: type[Struct]) -> dict[str, inspect.Type]:
    """The parameters by name; of one that may be left out, what it is when it is there."""
    return {field.encode_name: _present(field.type) for field in inspect.type_info(kind).fields}  # type: ignore[attr-defined]


def _present(kind: inspect.Type) -> inspect.Type:
    if isinstance(kind, inspect.Metadata):
        return _present(kind.type)
    if isinstance(kind, inspect.UnionType):
        return next(_present(one) for one in kind.types if not isinstance(one, inspect.NoneType))
    return kind


def _plain(text: str, kind: inspect.Type) -> str | int:
    number = isinstance(kind, inspect.IntType) and text.isascii() and text.isdigit() and len(text) < 20
    return int(text) if number else text


def _expected(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.IntType):
        return f"not a number from {kind.ge} to {2**62 if kind.le is None else kind.le}"
    if isinstance(kind, inspect.LiteralType):
        return f"none of {', '.join(map(str, kind.values))}"
    return "not a valid name"
