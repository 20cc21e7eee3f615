"""What a request carries beside its body: the headers that a client gave for it, and which transaction it belongs to.

Headers are refused when they come in, and never sent if they are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallystick.core.headers import malformed, metadata_trouble, trouble

Metadata = Sequence[tuple[str, str | bytes]]  # gRPC's headers


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
        wrong = metadata_trouble(name, value)
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
