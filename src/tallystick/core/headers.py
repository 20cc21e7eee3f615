"""The headers that a client gives for a call or a check-back: refused when they come in, and never sent if wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tallystick.core.errors import InvalidRequest
from tallystick.core.names import MOST_HEADERS
from tallystick.core.urls import GRPC_SCHEME

MAX_HEADER_BYTES = 16 * 1024
_NAME = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_VALUE = re.compile(r"^[\t\x20-\x7e\x80-\xff]*\Z")  # Latin-1 without ends of lines and other controls
_METADATA_NAME = re.compile(r"^[0-9a-z_.-]+\Z")
_METADATA_VALUE = re.compile(r"^[\x20-\x7e]*\Z")
_METADATA_OURS = ("grpc-", "dtm-")  # prefixes that gRPC and dtm's protocol use themselves
# These say where a request ends and who it is for, which is not for a client to tell.
_OURS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "tallystick-gid",
        "tallystick-branch",
        "tallystick-signature",
    }
)


def malformed(name: str, value: str) -> str | None:
    """Why this is not one header, or None if it is."""
    if not _NAME.match(name):
        return f"{name[:80]!r} is not a header name"
    if not _VALUE.match(value):
        return f"the value of {name!r} has an end of line, a control character or one that is not in Latin-1"
    return None


def trouble(name: str, value: str) -> str | None:
    """Why a client's header cannot be sent, or None if it can."""
    return f"{name!r} is set by the broker" if name.lower() in _OURS else malformed(name, value)


def metadata_trouble(name: str, value: str) -> str | None:
    """Why a client's header cannot be sent as gRPC's metadata, or None if it can."""
    wrong = trouble(name, value)
    if wrong is not None:
        return wrong
    key = name.lower()
    if key.startswith(_METADATA_OURS):
        return f"{name[:80]!r} is a name that gRPC or the broker uses itself"
    if not _METADATA_NAME.match(key):
        return f"{name[:80]!r} is no name for metadata of gRPC: it has letters, digits, '_', '.' and '-' only"
    if not key.endswith("-bin") and not _METADATA_VALUE.match(value):
        return f"the value of {name!r} is not printable ASCII, and gRPC carries other bytes under names with -bin only"
    return None


def check_headers(headers: Mapping[str, str] | None, field: str, url: str = "") -> None:
    """InvalidRequest if one of these cannot be sent, by gRPC where the URL says so."""
    if not headers:
        return
    size = sum(len(name) + len(value) for name, value in headers.items())
    if len(headers) > MOST_HEADERS or size > MAX_HEADER_BYTES:
        most = f"{MOST_HEADERS} headers and {MAX_HEADER_BYTES} bytes"
        raise InvalidRequest(f"{field}: {len(headers)} headers with {size} bytes, the most is {most}", field=field)
    judge = metadata_trouble if url.startswith(GRPC_SCHEME) else trouble
    for name, value in headers.items():
        wrong = judge(name, value)
        if wrong is not None:
            raise InvalidRequest(f"{field}: {wrong}", field=field)


def check_count(headers: Mapping[str, str] | None, field: str) -> None:
    """InvalidRequest if a message has more of them than it may."""
    if headers and len(headers) > MOST_HEADERS:
        raise InvalidRequest(f"{field}: {len(headers)} headers, the limit is {MOST_HEADERS}", field=field)
