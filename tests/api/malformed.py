"""Requests with something wrong: one fault, several, or a body that is none at all."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import msgspec
from hypothesis import strategies as st
from templates import DEEP, NOTHING, WHOLE_BODIES, WITH_BODY, Path, Request

from tallystick.core.wire import JSON, MSGPACK


def broken(body: Any, path: Path, wrong: Any) -> Any:
    """The body with one thing wrong."""
    changed = copy.deepcopy(body)
    place = changed
    for step in path[:-1]:
        place = place[step]
    if wrong is NOTHING:
        del place[path[-1]]
    else:
        place[path[-1]] = wrong
    return changed


QUERIES: dict[str, dict[str, list[str]]] = {
    "/v1/topics/kept/queues/0/messages": {
        "offset": ["-1", "x", "1.5", "", "99999999999999999999", "1e3", "٣", "99"],
        "max": ["0", "-1", "x", "100001", ""],
        "max_bytes": ["0", "-1", "x", "99999999999"],
        "wait_ms": ["-1", "x", "60001"],
    },
    "/v1/transactions": {
        "state": ["", "open", "PREPARED", "prepared,parked"],
        "group": ["", "a b", "../x", "a" * 200],
        "limit": ["0", "-1", "x", "1001", ""],
        "after": ["x", "0:zz", "9:00", "-1:", "2:6f.x", "0:00", ":", "0:", "0:64\0"],
    },
    "/v1/calls": {"state": ["", "done", "WAITING"], "limit": ["0", "x", "1001"], "after": ["x", "6f00", "44", "zz"]},
    "/v1/transactions/kept/calls": {"wait_ms": ["-1", "x", "60001"]},
    "/v1/groups/kept/offsets": {"topic": ["", "a b", "unknown", "../x"]},
}
PATHS = [
    ("GET", "/v1/topics/{}"),
    ("PUT", "/v1/topics/{}"),
    ("DELETE", "/v1/topics/{}"),
    ("GET", "/v1/topics/{}/queues/0/messages"),
    ("GET", "/v1/transactions/{}"),
    ("POST", "/v1/transactions/{}/commit"),
    ("POST", "/v1/transactions/{}/rollback"),
    ("POST", "/v1/transactions/{}/resume"),
    ("POST", "/v1/transactions/{}/hurry"),
    ("GET", "/v1/transactions/{}/calls"),
    ("POST", "/v1/transactions/{}/calls/resume"),
    ("POST", "/v1/transactions/{}/calls/stop"),
    ("GET", "/v1/call-topics/{}"),
    ("DELETE", "/v1/call-topics/{}"),
    ("PUT", "/v1/call-topics/{}/subscribers"),
    ("DELETE", "/v1/call-topics/{}/subscribers"),
    ("POST", "/v1/parts/{}"),
    ("GET", "/v1/groups/{}"),
    ("GET", "/v1/groups/{}/offsets?topic=kept"),
    ("POST", "/v1/groups/{}/receive"),
    ("POST", "/v1/groups/{}/ack"),
]
BAD_SEGMENTS = ["a%20b", "-a", "%2e%2e", "a%00b", "a%0a", "%C3%A4", "a" * 200, "a%2Fb", "a%27--", "%FF", "{x%20y}"]
BAD_SEGMENTS += [";login"]


def encodings(body: Any) -> list[tuple[str, bytes]]:
    """Content type and bytes, for each way to say it. msgpack has no numbers beyond 64 bits."""
    found = [(JSON, b"[" * 100_000 if body is DEEP else json.dumps(body).encode())]
    with contextlib.suppress(OverflowError, RecursionError):
        found.append((MSGPACK, msgspec.msgpack.encode(_numbered(body))))
    return found


def _numbered(body: Any) -> Any:
    """Queues are numbers in msgpack, where JSON knows only text as a key."""
    if isinstance(body, dict):
        return {int(key) if str(key).lstrip("-").isdigit() else key: _numbered(value) for key, value in body.items()}
    return body


@st.composite
def wrong_bodies(draw: st.DrawFn) -> tuple[Request, str, bytes]:
    """A request with up to three things wrong in its body."""
    request = draw(st.sampled_from(WITH_BODY))
    body = request.body
    for path in draw(st.lists(st.sampled_from(sorted(request.faults, key=repr)), min_size=1, max_size=3, unique=True)):
        wrong = draw(st.sampled_from(request.faults[path]))
        with contextlib.suppress(LookupError, TypeError):  # an earlier fault has removed the place of this one
            body = broken(body, path, wrong)
    return request, *draw(st.sampled_from(encodings(body)))


@st.composite
def no_bodies(draw: st.DrawFn) -> tuple[Request, str, bytes]:
    """A request whose body is cut off, rubbish, or something else altogether."""
    request = draw(st.sampled_from([one for one in WITH_BODY if "kept" not in one.path]))
    kind, encoded = draw(st.sampled_from(encodings(request.body)))
    cut = encoded[: draw(st.integers(1, len(encoded) - 1))]
    whole = draw(st.sampled_from(encodings(draw(st.sampled_from(WHOLE_BODIES)))))
    some = draw(st.binary(min_size=1, max_size=200)).strip(b" \t\r\n")
    rubbish = (kind, b"\xc1" if some in (b"", b"\x80") else some)  # an empty map is what some routes are content with
    return request, *draw(st.sampled_from([(kind, cut), (kind, encoded + b"\xff"), whole, rubbish]))
