"""URLs that can be called at all. Which of them a broker may call is said by its operator, in the allow-list."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from tallystick.core.errors import NotAllowed
from tallystick.core.names import check_name

TOPIC_SCHEME = "topic://"
GRPC_SCHEME = "grpc://"
DEFAULT_PORTS = {"http": 80, "https": 443}
PATH_CHARACTERS = "/:@!$&'()*+,;=-._~"
"""Beside letters and digits: what stands for itself in a path. All else is written with a %."""
_SCHEMES = ("http", "https", "grpc")
_MISLEADING = re.compile(r"[\s\\\x00-\x20\x7f]")  # what one program skips or turns and another does not
_HOST = re.compile(r"^([a-z0-9._-]+|[0-9a-f:.]+)\Z")
_GRPC_METHOD = re.compile(r"^/[A-Za-z0-9_.]+/[A-Za-z0-9_]+\Z")
_AFTER_BRACKET = re.compile(r"\](?!:|\Z)")
_KNOWN_URLS = 4_096


class UrlParts(NamedTuple):
    scheme: str
    host: str
    port: int
    path: str
    query: str


def url_parts(url: str) -> UrlParts:
    """The URL, taken apart. ValueError, with the reason, if no allow-list could ever let it through."""
    if _MISLEADING.search(url):
        raise ValueError("it has a space, a backslash or a control character")
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"its scheme is none of {', '.join(_SCHEMES)}")
    if "@" in parts.netloc:
        raise ValueError("it names a user")
    host = (parts.hostname or "").lower()
    if not _HOST.match(host) or _AFTER_BRACKET.search(parts.netloc):
        raise ValueError(f"{host[:80]!r} is no name of a host")
    port = DEFAULT_PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
    if not port:
        raise ValueError("it has no port")
    if parts.scheme == "grpc" and (parts.query or not _GRPC_METHOD.match(parts.path)):
        raise ValueError("it is not of the form grpc://host:port/package.Service/Method")
    return UrlParts(parts.scheme, host, port, parts.path, parts.query)


def host_place(url: str) -> str:
    """Scheme, host and port as they are written: calls to the same place share a line and a circuit breaker."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def check_url(url: str, field: str) -> None:
    """Refuse a call that no broker would ever make: NotAllowed, as a broker itself says, or the name of a call topic
    that is none."""
    if url.startswith(TOPIC_SCHEME):
        check_name(url[len(TOPIC_SCHEME) :], field)
        return
    reason = _never_allowed(url)
    if reason is not None:
        raise NotAllowed(f"{field}: no broker may call {url[:200]!r}: {reason}", field=field)


@lru_cache(maxsize=_KNOWN_URLS)  # the same few are called over and over
def _never_allowed(url: str) -> str | None:
    try:
        url_parts(url)
    except ValueError as reason:
        return str(reason)
    return None
