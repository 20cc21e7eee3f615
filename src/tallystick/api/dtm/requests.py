"""One HTTP request of a dtm client: its parameters and its body, read without Starlette."""

from __future__ import annotations

from urllib.parse import parse_qsl

import msgspec

from tallystick.api.dtm.errors import DtmError
from tallystick.api.serving.asgi import Receive, Scope
from tallystick.api.serving.problems import DECODING, undecodable

_decode_object = msgspec.json.Decoder(dict[str, object]).decode


class Asked:
    """What a handler needs of a request. `rest` is what the path has after its route."""

    __slots__ = ("_parameters", "body", "receive", "rest", "scope")

    def __init__(self, scope: Scope, receive: Receive, body: bytes, rest: str) -> None:
        self.scope, self.receive, self.body, self.rest = scope, receive, body, rest
        self._parameters: dict[str, str] | None = None

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
