"""Where the broker may go: URLs its operator allowed, and addresses that were checked.

A client may name URLs for its check-backs and calls, so this is the place where a broker could be made to reach what
only it can reach. Hence: scheme, host and port must match a pattern; the name is resolved once and the connection
goes to that very address; addresses that are special (loopback, link-local, ...) must be allowed by name.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import re
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

from tallystick.broker.threads import on_a_thread
from tallystick.core.errors import ConfigError, NotAllowed
from tallystick.core.urls import DEFAULT_PORTS, PATH_CHARACTERS, url_parts

_PATTERN = re.compile(r"^(https?|grpc)://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9*._-]+):(\d{1,5}|\*)\Z")
_KNOWN_URLS = 4_096
_PATH_CHARACTERS = f"{PATH_CHARACTERS}%"
_QUERY_CHARACTERS = _PATH_CHARACTERS + "?"


class Target(NamedTuple):
    """An allowed URL, taken apart. Path and query hold nothing but what may stand in a request line."""

    scheme: str
    host: str
    port: int
    authority: str  # as the Host header names it
    path: str
    query: str

    @property
    def place(self) -> str:
        """Host and port, whether or not it is the port that the scheme has anyway."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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
        # The same few URLs are called over and over; the patterns never change.
        self._target = lru_cache(maxsize=_KNOWN_URLS)(self._look_at)

    def check(self, url: str, field: str) -> None:
        """NotAllowed unless the operator allowed the URL's scheme, host and port."""
        self.target(url, field)

    def target(self, url: str, field: str) -> Target:
        """What the URL says; NotAllowed unless the operator allowed its scheme, host and port."""
        try:
            found = self._target(url)
        except ValueError as error:
            raise NotAllowed(f"{field}: this broker may not call {url[:200]!r}: {error}", field=field) from error
        if found is None:
            raise NotAllowed(
                f"{field}: this broker may not call {url[:200]!r}; its operator can add it to allowed_urls", field=field
            )
        return found

    def _look_at(self, url: str) -> Target | None:
        parts = url_parts(url)
        host, port = parts.host, parts.port
        if _number_of_a_special_address(host) and not self.names_host(host):
            return None
        for scheme, pattern, allowed_port in self._patterns:
            if parts.scheme == scheme and pattern.match(host) and allowed_port in ("*", str(port)):
                shown = f"[{host}]" if ":" in host else host
                authority = shown if DEFAULT_PORTS.get(scheme) == port else f"{shown}:{port}"
                path = quote(parts.path or "/", safe=_PATH_CHARACTERS)
                return Target(scheme, host, port, authority, path, quote(parts.query, safe=_QUERY_CHARACTERS))
        return None

    def names_host(self, host: str) -> bool:
        """Whether the operator wrote this very host: then its address may be a special one."""
        return host.lower() in self._literal_hosts


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


def _is_a_number(host: str) -> bool:
    if ":" in host:
        return True
    try:
        return bool(ipaddress.IPv4Address(host))
    except ValueError:
        return False


def look_up(host: str) -> list[str]:
    """The addresses of a name, as numbers, best first."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


class Resolver:
    """Resolves names and refuses the addresses that an outside name must not lead to. Connections are made to what is
    returned here, so there is no second look-up that could give another answer."""

    KEEP_SECONDS = 5.0
    AT_ONCE = 256

    def __init__(self, allowed: AllowedUrls, look_up: Callable[[str], list[str]] = look_up) -> None:
        self._allowed, self._look_up = allowed, look_up
        self._known: dict[str, tuple[float, list[str]]] = {}
        # One look-up a name at a time: a name server that hangs holds one thread for each dead name, not for each call.
        self._running: dict[str, asyncio.Future[list[str]]] = {}
        self._threads = asyncio.Semaphore(self.AT_ONCE)

    async def addresses(self, host: str) -> list[str]:
        """The addresses of a host that may be connected to, at least one; OSError if there are none."""
        if _is_a_number(host):
            return self._checked(host, [host])
        now = asyncio.get_running_loop().time()
        until, found = self._known.get(host, (0.0, []))
        if until > now:
            return found
        looking = self._running.get(host)
        if looking is None:
            looking = asyncio.ensure_future(self._find(host))
            self._running[host] = looking
            looking.add_done_callback(lambda done: self._found(host, done))
        return await asyncio.shield(looking)  # the next caller may still have time when this one has none left

    async def _find(self, host: str) -> list[str]:
        async with self._threads:
            found = await on_a_thread(lambda: self._look_up(host), "tallystick-names")
        return self._checked(host, found)

    def _checked(self, host: str, found: list[str]) -> list[str]:
        named = self._allowed.names_host(host)
        checked = [one for one in found if named or not _special(ipaddress.ip_address(one.partition("%")[0]))]
        if not checked:
            raise OSError(errno.EACCES, f"{host} leads to an address that allowed_urls does not name")
        return checked

    def _found(self, host: str, done: asyncio.Future[list[str]]) -> None:
        del self._running[host]
        if done.cancelled() or done.exception() is not None:
            return
        loop = asyncio.get_running_loop()
        self._known = {name: kept for name, kept in self._known.items() if kept[0] > loop.time()}
        self._known[host] = (loop.time() + self.KEEP_SECONDS, done.result())

    async def close(self) -> None:
        looking = list(self._running.values())
        for one in looking:
            one.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
