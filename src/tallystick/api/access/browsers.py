"""What a browser sends on behalf of a page of another site is refused: its user is not the one who asks.

A page anywhere can make a browser send a request to any address that its user reaches, this broker's as well. It cannot
make the browser send a request that does not look like a browser's. Where it comes from, browsers say in headers that
the page cannot change, but not always: over plain http a look at what seems to be the page's own site has neither
`Origin` nor `Sec-Fetch-Site`. Any name can be made to lead here, so the page's own site may seem to be this broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from tallystick.core.errors import Forbidden

# Every browser sends a language and its name, which pages can change and not take away.
_SIGNS = frozenset((b"origin", b"referer", b"accept-language", b"upgrade-insecure-requests"))
_KINDS_OF_SIGNS = (b"sec-fetch-", b"sec-ch-")
_BROWSERS_NAME = b"mozilla/"  # with which that of every browser begins
_SAFE = ("GET", "HEAD")


def has_signs(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request looks like a browser's."""
    return any(map(is_sign, headers.items()))


def is_sign(header: tuple[bytes, bytes]) -> bool:
    name, value = header
    if name == b"user-agent":
        return value[: len(_BROWSERS_NAME)].lower() == _BROWSERS_NAME
    return name in _SIGNS or name.startswith(_KINDS_OF_SIGNS)


def refuse_other_sites(
    method: str,
    headers: Mapping[bytes, bytes],
    *,
    is_open: bool,
    changes: bool,
    proven: bool,
    hosts: Collection[str],
) -> None:
    """Raises `Forbidden`. `is_open`: of a route that everybody may look at. `changes`: one by which a look changes
    something, as dtm's clients want it; then no browser is let through at all. `proven`: whether it shows a credential
    that is going to be looked at. `hosts` are the names that nobody else makes lead here."""
    if (is_open and method in _SAFE) or not has_signs(headers):
        return
    if changes and method in _SAFE:
        raise Forbidden("a browser may not change anything by GET; send it by POST")
    host = headers.get(b"host", b"")
    if b"origin" in headers and not _same(headers[b"origin"], host):
        raise Forbidden("Origin: a page of another site may not ask this broker", field="Origin")
    if headers.get(b"sec-fetch-site", b"").lower() in (b"cross-site", b"same-site"):
        raise Forbidden("Sec-Fetch-Site: a page of another site may not ask this broker", field="Sec-Fetch-Site")
    # A page that was loaded from a name of its own, which then got our address, has no credential: the browser keeps
    # them apart by names.
    if not (proven or _is_own(host, hosts)):
        raise Forbidden(
            "Host: a browser may ask this broker by its address, as localhost, or by a name in browser_hosts, because "
            "any other name may be made to lead here; or with a token",
            field="Host",
        )


def _same(origin: bytes, host: bytes) -> bool:
    try:
        place = urlsplit(origin.decode("ascii"))
        own = urlsplit(f"//{host.decode('ascii')}")
        usual = {"http": 80, "https": 443}.get(place.scheme)
        return place.hostname is not None and (place.hostname, place.port or usual) == (own.hostname, own.port or usual)
    except ValueError:  # no address at all
        return False


def _is_own(host: bytes, hosts: Collection[str]) -> bool:
    """Whether nobody else can have made this name lead here."""
    try:
        name = urlsplit(f"//{host.decode('ascii')}").hostname or ""
        return name == "localhost" or name in hosts or bool(ip_address(name))
    except ValueError:
        return False
