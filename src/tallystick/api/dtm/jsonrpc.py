"""dtm's JSON-RPC 2.0: the same operations in one envelope, always with HTTP status 200."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from tallystick.api.dtm.engine import Dtm
from tallystick.api.dtm.errors import DtmError, DtmForbidden, refusal_of
from tallystick.api.dtm.translate import Trans, trans_from
from tallystick.api.serving.problems import DECODING

PARSE_ERROR, BAD_REQUEST, NO_METHOD = -32700, -32600, -32601
Method = Callable[[Trans], Awaitable[dict[str, str] | None]]
_WITHOUT_PARAMS = ("newGid",)


class Envelope(Struct):
    jsonrpc: str | None = None
    method: str | None = None
    params: Any = None
    id: str | None = None


class JsonRpcFault(Struct):
    code: int
    message: str


class Reply(Struct):
    """dtm always sends both `error` and `result`, one of them null."""

    jsonrpc: str
    id: str
    error: JsonRpcFault | None = None
    result: dict[str, str] | None = None


_decode = msgspec.json.Decoder(Envelope).decode


class JsonRpc:
    """One request. `forbidden` tells afterwards whether it was not for whoever asked, which has no code of its own."""

    def __init__(self, dtm: Dtm) -> None:
        self._dtm = dtm
        self.forbidden = False
        self._methods: dict[str, Method] = {
            "newGid": self._new_gid,
            "prepare": self._prepare,
            "submit": self._submit,
            "abort": self._abort,
            "registerBranch": self._register_branch,
        }

    async def answer(self, body: bytes) -> Reply:
        try:
            asked = _decode(body)
        except DECODING as error:
            return _refused("", PARSE_ERROR, f"Parse json error: {error}")
        name = asked.id or ""
        if not name or asked.jsonrpc != "2.0":
            return _refused(name, BAD_REQUEST, 'Bad json request: id must not be empty and jsonrpc be "2.0"')
        method = self._methods.get(asked.method or "")
        if method is None:
            known = ", ".join(self._methods)
            return _refused(name, NO_METHOD, f"Method not found: {(asked.method or '')[:80]!r} is none of {known}")
        try:
            return Reply("2.0", name, None, await method(_params_of(asked)))
        except Exception as error:
            refusal = refusal_of(error)
            self.forbidden = isinstance(refusal, DtmForbidden)
            return _refused(name, refusal.jsonrpc_code, refusal.message)

    async def _new_gid(self, _: Trans) -> dict[str, str]:
        return {"dtm_result": "SUCCESS", "gid": self._dtm.new_gid()}

    async def _prepare(self, trans: Trans) -> None:
        await self._dtm.prepare(trans)

    async def _submit(self, trans: Trans) -> None:
        await self._dtm.submit(trans)

    async def _abort(self, trans: Trans) -> None:
        await self._dtm.abort(trans)

    async def _register_branch(self, trans: Trans) -> None:
        self._dtm.register_branch(trans.trans_type)


def _params_of(asked: Envelope) -> Trans:
    """As in dtm, `params` are only read where a method needs them, and null is as good as nothing."""
    if asked.params is None or asked.method in _WITHOUT_PARAMS:
        return Trans()
    if not isinstance(asked.params, dict):
        kind = type(asked.params).__name__
        raise DtmError(f"params: expected a JSON object (got {kind}). Send the transaction's fields by name.")
    return trans_from(asked.params)


def _refused(name: str, code: int, message: str) -> Reply:
    return Reply("2.0", name, JsonRpcFault(code, message))
