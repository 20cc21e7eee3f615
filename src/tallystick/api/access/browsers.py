"""What a browser sends on behalf of a page of another site is refused: its user is not the one who asks.

A page anywhere can make a browser send a request to any address that its user reaches, this broker's as well. Browsers
say of such a request where it comes from, in headers that the page cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from tallystick.core.errors import Forbidden

_SIGNS = (b"origin", b"referer", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"sec-fetch-user")
_SAFE = ("GET", "HEAD")


def refuse_other_sites(method: str, headers: Mapping[bytes, bytes], is_open: bool, changes: bool) -> None:
    """Raises `Forbidden`. `is_open`: of a route that everybody may look at. `changes`: one by which a look changes
    something, as dtm's clients want it; then no browser is let through at all."""
    if changes and method in _SAFE and any(sign in headers for sign in _SIGNS):
        raise Forbidden("a browser may not change anything by GET; send it by POST")
    looked_at = is_open and method in _SAFE
    if b"origin" in headers and not looked_at and not _same(headers[b"origin"], headers.get(b"host", b"")):
        raise Forbidden("Origin: a page of another site may not ask this broker", field="Origin")
    site = headers.get(b"sec-fetch-site", b"").lower()
    if (b"origin" in headers or site == b"same-origin") and not looked_at and not _is_own(headers.get(b"host", b"")):
        raise Forbidden(
            "Host: a browser's pages may ask this broker by its address or as localhost only, because any name may be "
            "made to lead here",
            field="Host",
        )
    if site in (b"cross-site", b"same-site") and not looked_at:
        raise Forbidden("Sec-Fetch-Site: a page of another site may not ask this broker", field="Sec-Fetch-Site")


def _same(origin: bytes, host: bytes) -> bool:
    try:
        place = urlsplit(origin.decode("ascii"))
        own = urlsplit(f"//{host.decode('ascii')}")
        usual = {"http": 80, "https": 443}.get(place.scheme)
        return place.hostname is not None and (place.hostname, place.port or usual) == (own.hostname, own.port or usual)
    except ValueError:  # no address at all
        return False


def _is_own(host: bytes) -> bool:
    """Whether nobody else can have made this name lead here: a page that was loaded from a name of its own, which then
    got our address, is of the same site as far as a browser can tell."""
    try:
        name = urlsplit(f"//{host.decode('ascii')}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False
