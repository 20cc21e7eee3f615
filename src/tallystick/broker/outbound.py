"""Requests that the broker makes: only to URLs its operator allowed, to the address that was checked, never further.

Redirects, proxies and cookies are off; answers are cut off at a size and a time.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from tallystick.broker.allowed import AllowedUrls, Resolver, Target
from tallystick.broker.answered import (
    MAX_ANSWER_BYTES,
    Answered,
    OutboundFailed,
    broken,
    garbled,
    late,
    unsendable,
)
from tallystick.broker.calls.grpc import Grpc, GrpcAnswer, Metadata
from tallystick.broker.calls.headers import header_lines
from tallystick.broker.calls.http1 import Http1
from tallystick.core.errors import NotAllowed

__all__ = ["MAX_ANSWER_BYTES", "AllowedUrls", "Answered", "Outbound", "OutboundFailed"]


class _PinnedResolver(AbstractResolver):
    """What aiohttp connects to: the addresses that were checked."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del family  # whichever kind a name has
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._resolver.addresses(host)
        ]

    async def close(self) -> None:
        """Nothing is held."""


class Outbound:
    def __init__(self, allowed: AllowedUrls, resolver: Resolver | None = None) -> None:
        self.allowed = allowed
        self._resolver = resolver or Resolver(allowed)
        self._plain = Http1(self._resolver)
        self._grpc = Grpc(self._resolver)
        # No limit here: whoever asks has one for each host. One for all together would let dead hosts hold up others.
        connector = aiohttp.TCPConnector(resolver=_PinnedResolver(self._resolver), use_dns_cache=False, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )

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
        if target.scheme == "https":
            return await self._request_tls(method, target, asked, headers, body, seconds)
        try:
            head = _head(method, target, asked, headers, body)
        except ValueError as error:
            raise unsendable(str(error)) from error
        return await self._plain.request(target, head + body, seconds)

    async def grpc(self, url: str, metadata: Metadata, body: bytes, seconds: float) -> GrpcAnswer:
        """One unary call to grpc://host:port/package.Service/Method, and the status it ended with."""
        return await self._grpc.call(self._target(url, ("grpc",)), metadata, body, seconds)

    def _target(self, url: str, schemes: tuple[str, ...]) -> Target:
        try:
            target = self.allowed.target(url, "url")
        except NotAllowed as error:
            raise OutboundFailed(error.detail, "not_allowed", permanent=True) from error
        if target.scheme not in schemes:
            raise unsendable(f"{url[:200]!r} is not of the scheme {' or '.join(schemes)}")
        return target

    async def _request_tls(
        self, method: str, target: Target, asked: str, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> Answered:
        url = URL(f"https://{target.authority}{asked}", encoded=True)
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(
                method, url, headers=headers, data=body or None, allow_redirects=False, timeout=timeout
            ) as answer:
                return Answered(answer.status, await _beginning(answer.content))
        except TimeoutError as error:
            raise late(seconds) from error
        except (aiohttp.InvalidURL, UnicodeError) as error:  # the last: a name too long for DNS
            raise unsendable(error) from error
        except aiohttp.ClientSSLError as error:
            raise garbled(error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise broken(error) from error

    async def close(self) -> None:
        await self._session.close()
        await self._plain.close()
        await self._grpc.close()
        await self._resolver.close()


def _head(method: str, target: Target, asked: str, headers: Mapping[str, str], body: bytes) -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
    lines = header_lines(headers)
    return (
        f"{method} {asked} HTTP/1.1\r\nHost: {target.authority}\r\nUser-Agent: tallystick\r\nAccept: */*\r\n"
        f"{length}{lines}\r\n"
    ).encode("latin-1")


async def _beginning(content: aiohttp.StreamReader) -> bytes:
    """The body, cut off at a size. One read brings what has arrived, which need not be all of it."""
    body = bytearray()
    while len(body) < MAX_ANSWER_BYTES and (piece := await content.read(MAX_ANSWER_BYTES - len(body))):
        body += piece
    return bytes(body)
