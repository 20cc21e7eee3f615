"""Requests that the broker makes: only to URLs its operator allowed, to the address that was checked, never further.

There are no redirects, proxies and cookies; answers are cut off at a size and a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from tallystick.broker.outbound.allow_list import AllowedUrls, Resolver, Target
from tallystick.broker.outbound.answer import Answered, GrpcAnswer, OutboundFailed, unsendable
from tallystick.broker.outbound.headers import Metadata, header_lines
from tallystick.broker.outbound.http1 import Http1
from tallystick.broker.outbound.signer import Signer
from tallystick.broker.threads import on_a_thread
from tallystick.core.errors import NotAllowed
from tallystick.core.signing import GRPC_METHOD, SIGNATURE_HEADER, grpc_path

if TYPE_CHECKING:
    from tallystick.broker.outbound.grpc import Grpc


class Outbound:
    """Made inside a running event loop. With a signer, every request carries its signature."""

    def __init__(self, allowed: AllowedUrls, resolver: Resolver | None = None, signer: Signer | None = None) -> None:
        self.allowed = allowed
        self._signer = signer
        self._resolver = resolver or Resolver(allowed)
        self._http = Http1(self._resolver)
        self._grpc: Grpc | None = None

    async def get(
        self, url: str, params: Mapping[str, str], seconds: float, headers: Mapping[str, str] | None = None
    ) -> Answered:
        return await self.request("GET", url, headers or {}, b"", seconds, urlencode(params))

    async def post_json(self, url: str, body: Any, seconds: float) -> Answered:
        headers = {"Content-Type": "application/json"}
        answered = await self.request("POST", url, headers, msgspec.json.encode(body), seconds)
        if answered.status >= 300:
            raise OutboundFailed(f"status {answered.status}", "status", permanent=answered.status < 500)
        return answered

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, seconds: float, query: str = ""
    ) -> Answered:
        """One request, sent once. `query`, encoded already, is added to the URL's own."""
        target = self._target(url, ("http", "https"))
        if target.query:
            query = f"{target.query}&{query}" if query else target.query
        asked = f"{target.path}?{query}" if query else target.path
        if self._signer is not None:
            headers = {**headers, SIGNATURE_HEADER: self._signer.signature(method, target.place, asked, body)}
        try:
            head = _head(method, target, asked, headers, body)
        except ValueError as error:
            raise unsendable(str(error)) from error
        return await self._http.request(target, head + body, seconds)

    async def grpc(self, url: str, metadata: Metadata, body: bytes, seconds: float) -> GrpcAnswer:
        """One unary call to grpc://host:port/package.Service/Method, and the status it ended with."""
        target = self._target(url, ("grpc",))
        if self._signer is not None:
            signature = self._signer.signature(GRPC_METHOD, target.place, grpc_path(target.path, metadata), body)
            metadata = [*metadata, (SIGNATURE_HEADER.lower(), signature)]
        if self._grpc is None:
            # Large, and many brokers never need it. On a thread, so that nobody waits for it who does not want it.
            kind = await on_a_thread(_grpc_client, "tallystick-grpc")
            self._grpc = self._grpc or kind(self._resolver)
        return await self._grpc.call(target, metadata, body, seconds)

    def _target(self, url: str, schemes: tuple[str, ...]) -> Target:
        try:
            target = self.allowed.target(url, "url")
        except NotAllowed as error:
            raise OutboundFailed(error.detail, "not_allowed", permanent=True) from error
        if target.scheme not in schemes:
            raise unsendable(f"{url[:200]!r} is not of the scheme {' or '.join(schemes)}")
        return target

    async def close(self) -> None:
        await self._http.close()
        if self._grpc is not None:
            await self._grpc.close()
        await self._resolver.close()


def _grpc_client() -> type[Grpc]:
    from tallystick.broker.outbound.grpc import Grpc

    return Grpc


def _head(method: str, target: Target, asked: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Without `Accept-Encoding`, a service could choose any coding, and the broker decodes none."""
    length = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
    lines = header_lines({name: value for name, value in headers.items() if name.lower() != "accept-encoding"})
    return (
        f"{method} {asked} HTTP/1.1\r\nHost: {target.authority}\r\nUser-Agent: tallystick\r\nAccept: */*\r\n"
        f"Accept-Encoding: identity\r\n{length}{lines}\r\n"
    ).encode("latin-1")
