"""What a request carries beside its body: the headers that a client gave for it, and which transaction it belongs to.

Headers are refused when they come in, and never sent if they are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tallystick.core.errors import InvalidRequest

Metadata = Sequence[tuple[str, str | bytes]]  # gRPC's headers
MAX_HEADERS = 64
MAX_HEADER_BYTES = 16 * 1024
_NAME = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_VALUE = re.compile(r"^[\t\x20-\x7e\x80-\xff]*\Z")  # Latin-1 without ends of lines and other controls
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
    }
)
_METADATA_NAME = re.compile(r"^[0-9a-z_.-]+\Z")
_METADATA_VALUE = re.compile(r"^[\x20-\x7e]*\Z")


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


def check_headers(headers: Mapping[str, str] | None, field: str) -> None:
    """InvalidRequest if one of these cannot be sent."""
    if not headers:
        return
    size = sum(len(name) + len(value) for name, value in headers.items())
    if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        most = f"{MAX_HEADERS} headers and {MAX_HEADER_BYTES} bytes"
        raise InvalidRequest(f"{field}: {len(headers)} headers with {size} bytes, the most is {most}", field=field)
    for name, value in headers.items():
        wrong = trouble(name, value)
        if wrong is not None:
            raise InvalidRequest(f"{field}: {wrong}", field=field)


def joined(ours: dict[str, str], given: Mapping[str, str] | None) -> dict[str, str]:
    """Our headers and a client's; of the same name the client's, unless it is none it may set (ValueError)."""
    if not given:
        return ours
    for name, value in given.items():
        wrong = trouble(name, value)
        if wrong is not None:
            raise ValueError(wrong)
    names = {name.lower() for name in given}
    return {name: value for name, value in ours.items() if name.lower() not in names} | dict(given)


def header_lines(headers: Mapping[str, str]) -> str:
    """The lines of a request's head. ValueError instead of one that would say something else than one header."""
    lines = []
    for name, value in headers.items():
        wrong = malformed(name, value)
        if wrong is not None:
            raise ValueError(wrong)
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines)


def metadata_of(headers: Mapping[str, str] | None) -> list[tuple[str, str | bytes]]:
    """The same as gRPC's metadata, where names are in lower case. ValueError for what gRPC cannot carry."""
    found: list[tuple[str, str | bytes]] = []
    for name, value in (headers or {}).items():
        key = name.lower()
        wrong = trouble(name, value)
        if wrong is None and (not _METADATA_NAME.match(key) or key.startswith(("grpc-", "dtm-"))):
            wrong = f"{name[:80]!r} is no name for metadata"
        if wrong is None and not key.endswith("-bin") and not _METADATA_VALUE.match(value):
            wrong = f"the value of {name!r} is not plain ASCII"
        if wrong is not None:
            raise ValueError(wrong)
        found.append((key, value.encode("latin-1") if key.endswith("-bin") else value))
    return found


def marks(gid: str, branch: str, op: str) -> dict[str, str]:
    """Which transaction a request belongs to and what it is for, in dtm's words."""
    return {"gid": gid, "trans_type": "msg", "branch_id": branch, "op": op}


def grpc_marks(gid: str, branch: str, op: str) -> list[tuple[str, str | bytes]]:
    named: dict[str, str | bytes] = {**marks(gid, branch, op), "dtm": ""}
    return [(f"dtm-{name}", value) for name, value in named.items()]
