"""Requests that the broker makes: only to URLs its operator allowed, to the address that was checked, never further.

A client may name a URL for its check-backs, so this is the place where a broker could be made to reach what only
it can reach. Hence: scheme, host and port must match a pattern; the name is resolved once and the connection goes
to that very address; addresses that are special (loopback, link-local, ...) must be allowed by name; redirects,
proxies and cookies are off; answers are cut off at a size and a time.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from tallystick.core.errors import ConfigError, NotAllowed

MAX_ANSWER_BYTES = 64 * 1024
_PATTERN = re.compile(r"^(https?)://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9*._-]+):(\d{1,5}|\*)\Z")


class OutboundFailed(Exception):
    """A request brought no answer. `permanent`: asking again soon would bring none either."""

    def __init__(self, reason: str, kind: str, permanent: bool) -> None:
        super().__init__(reason)
        self.kind = kind
        self.permanent = permanent


class Answered(msgspec.Struct):
    status: int
    body: bytes


class AllowedUrls:
    """Patterns `scheme://host:port`; `*` stands for any port, or for a part of a host name."""

    def __init__(self, patterns: list[str]) -> None:
        self._patterns: list[tuple[str, re.Pattern[str], str]] = []
        self._literal_hosts: set[str] = set()
        for pattern in patterns:
            found = _PATTERN.match(pattern)
            if found is None:
                raise ConfigError(
                    f"allowed_urls: {pattern!r} is not of the form scheme://host:port, for example http://*.internal:8080",
                    field="allowed_urls",
                )
            scheme, host, port = found.groups()
            host = host.strip("[]").lower()
            labels = re.escape(host).replace(r"\*", r"[a-z0-9-]+")
            self._patterns.append((scheme, re.compile(rf"^{labels}\Z"), port))
            if "*" not in host:
                self._literal_hosts.add(host)

    def check(self, url: str, field: str) -> None:
        """NotAllowed unless the operator allowed the URL's scheme, host and port."""
        try:
            parts = urlsplit(url)
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
            host = (parts.hostname or "").lower()
        except ValueError as error:
            raise NotAllowed(f"{field}: {url[:200]!r} is not a URL: {error}", field=field) from error
        plain = not (parts.username or parts.password) and "@" not in parts.netloc and not re.search(r"[\s\\]", url)
        plain = plain and (self.names_host(host) or not _number_of_a_special_address(host))
        for scheme, pattern, allowed_port in self._patterns:
            if plain and parts.scheme == scheme and pattern.match(host) and allowed_port in ("*", str(port)):
                return
        raise NotAllowed(
            f"{field}: this broker may not call {url[:200]!r}; its operator can add it to allowed_urls", field=field
        )

    def names_host(self, host: str) -> bool:
        """Whether the operator wrote this very host: then its address may be a special one."""
        return host.lower() in self._literal_hosts


class _PinnedResolver(AbstractResolver):
    """Resolves a name and refuses the addresses that an outside name must not lead to. The connection is made to
    what is returned here, so there is no second look-up that could give another answer."""

    def __init__(self, allowed: AllowedUrls) -> None:
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        named = self._allowed.names_host(host)
        results = []
        for kind, _, protocol, _, address in found:
            ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
            if named or not _special(ip):
                results.append(
                    ResolveResult(
                        hostname=host,
                        host=str(address[0]),
                        port=port,
                        family=kind,
                        proto=protocol,
                        flags=socket.AI_NUMERICHOST,
                    )
                )
        if not results:
            raise OSError(errno.EACCES, f"{host} leads to an address that allowed_urls does not name")
        return results

    async def close(self) -> None:
        """Nothing is held."""


def _number_of_a_special_address(host: str) -> bool:
    """A host that is a number is connected to as it is, without a look-up that could refuse it."""
    if ":" not in host and not host.replace(".", "").isdigit():
        return False
    try:
        return _special(ipaddress.ip_address(host))
    except ValueError:
        return True  # an address in disguise, such as 127.1 or 2130706433: what it leads to is up to the system


def _special(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool(
        mapped is not None
        or not (ip.is_global or ip.is_private)
        or ip.is_loopback
        or ip.is_link_local
        or ip.is_multicast
        or ip.is_unspecified
        or ip.is_reserved
    )


class Outbound:
    def __init__(self, allowed: AllowedUrls) -> None:
        self.allowed = allowed
        # No limit here: the check-back has one for each host. One for all together would let dead hosts hold up others.
        connector = aiohttp.TCPConnector(resolver=_PinnedResolver(allowed), use_dns_cache=False, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )

    async def get(self, url: str, params: dict[str, str], seconds: float) -> Answered:
        return await self._request("GET", url, seconds, params=params)

    async def post_json(self, url: str, body: Any, seconds: float) -> Answered:
        headers = {"Content-Type": "application/json"}
        answered = await self._request("POST", url, seconds, data=msgspec.json.encode(body), headers=headers)
        if answered.status >= 300:
            raise OutboundFailed(f"status {answered.status}", "status", permanent=answered.status < 500)
        return answered

    async def _request(self, method: str, url: str, seconds: float, **rest: Any) -> Answered:
        try:
            self.allowed.check(url, "url")
            timeout = aiohttp.ClientTimeout(total=seconds)
            async with self._session.request(method, url, allow_redirects=False, timeout=timeout, **rest) as answer:
                return Answered(answer.status, await _beginning(answer.content))
        except NotAllowed as error:
            raise OutboundFailed(error.detail, "not_allowed", permanent=True) from error
        except TimeoutError as error:
            raise OutboundFailed(f"no answer within {seconds:g} s", "timeout", permanent=False) from error
        except (aiohttp.InvalidURL, aiohttp.ClientSSLError, UnicodeError) as error:  # the last: a name too long for DNS
            raise OutboundFailed(f"{type(error).__name__}: {error}", "protocol", permanent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise OutboundFailed(f"{type(error).__name__}: {error}", "network", permanent=False) from error

    async def close(self) -> None:
        await self._session.close()


async def _beginning(content: aiohttp.StreamReader) -> bytes:
    """The body, cut off at a size. One read brings what has arrived, which need not be all of it."""
    body = bytearray()
    while len(body) < MAX_ANSWER_BYTES and (piece := await content.read(MAX_ANSWER_BYTES - len(body))):
        body += piece
    return bytes(body)
