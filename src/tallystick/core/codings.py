"""Codings of HTTP bodies. Tallystick asks for `identity` and decodes no other."""

from __future__ import annotations

MAX_SHOWN = 80
_HEADERS = frozenset((b"content-encoding", b"transfer-encoding"))
_LENGTHS = frozenset(len(name) for name in _HEADERS)  # tells most other names apart without a copy
_READABLE = frozenset(("", "identity", "chunked"))


def unread_coding(name: bytes, value: bytes) -> str:
    """What a header says the body is encoded with, such as `gzip`; "" if the body can be read as it is."""
    if len(name) not in _LENGTHS or name.lower() not in _HEADERS:
        return ""
    codings = (one.strip().lower() for one in value.decode("latin-1").split(","))
    return ", ".join(one for one in codings if one not in _READABLE)[:MAX_SHOWN]


def encoded_answer(address: str, coding: str) -> str:
    return (
        f"{address}: the answer is encoded with {coding!r}, which Tallystick does not decode. A proxy on the way must "
        "pass on answers without compression, as `Accept-Encoding: identity` in the request asks."
    )
