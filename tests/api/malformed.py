"""Requests that must be refused: valid ones of every route, each with something wrong in it.

A fault is a place in a body (or a query) and a value that must not be there; `NOTHING` stands for a field left out.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st

from tallystick.core.wire import JSON, MSGPACK

MESSAGE_BYTES, REQUEST_BYTES, MESSAGES = 10_000, 60_000, 10


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING = _Nothing()
Path = tuple[str | int, ...]

BAD_NAMES = ["", "-a", ".a", "a b", "a/b", "../x", "a\n", "a\0", "ä", "a" * 128, "a;b", "%41", "a\u2028b", 7, None, []]
BAD_GIDS = ["", "-a", "a b", "a/b", "../../x", "a\n", "a\0b", "é", "a" * 129, "a'--", 7, [], {}]
NO_TEXT: list[Any] = [7, True, [], {}]
NO_NUMBER: list[Any] = ["7", "x", 1.5, True, [], {}, None]
NO_TIME = [-1, 10**30, 2**63, *NO_NUMBER]
NO_LIST: list[Any] = [7, "x", {}, None, True]
TOO_LONG = "x" * 9_000
DEEP: Any = []
for _ in range(3_000):
    DEEP = [DEEP]


@dataclass
class Request:
    """A valid request, and what makes it invalid."""

    method: str
    path: str
    body: Any
    faults: dict[Path, list[Any]] = field(default_factory=dict)


_JSON_MESSAGE = {"topic": "t", "value": "v"}
_JSON_MESSAGE_FAULTS: dict[Path, list[Any]] = {
    ("topic",): [*BAD_NAMES, NOTHING],
    ("value",): [NOTHING],
    ("value_base64",): ["AA==", "?", 7, "A"],
    ("key",): [*NO_TEXT, "x" * 1_025],
    ("headers",): [7, "x", [], {"": "v"}, {"h": 7}, {"h": TOO_LONG}, {"h" * 129: "v"}, {str(n): "v" for n in range(65)}],
    ("tag",): [*NO_TEXT, "x" * 129],
    ("deliver_at",): NO_TIME,
    ("nonsense",): [1],
}
_OP_MESSAGE_FAULTS = {
    **_JSON_MESSAGE_FAULTS,
    ("value",): [NOTHING, 7, None, []],
    ("value_base64",): ["AA=="],
    ("born_at",): NO_TIME,
}
_CHECK_FAULTS: dict[Path, list[Any]] = {
    ("via",): ["telepathy", 7, None, []],
    ("target",): [7, "x" * 2_049],
    ("source",): [7, "x" * 513],
    ("after_ms",): [-1, 10**30, "1", 366 * 24 * 3600 * 1000 + 1],
    ("max_checks",): [0, -1, 10_001, "x", 1.5],
    ("on_exhausted",): ["explode", 7],
    ("nonsense",): [1],
}
_URL_FAULTS: dict[Path, list[Any]] = {
    ("check",): [
        {"via": "url"},
        {"via": "database"},
        {"via": "database", "target": "unknown"},
        *({"via": "url", "target": url} for url in ("http://example.com/", "file:///etc/passwd", "http://[::1", "x", "")),
    ]
}


def _under(path: Path, faults: dict[Path, list[Any]]) -> dict[Path, list[Any]]:
    return {path + place: wrong for place, wrong in faults.items()}


_MESSAGES_FAULTS: dict[Path, list[Any]] = {
    ("messages",): [*NO_LIST, NOTHING, [7], [None], [_JSON_MESSAGE] * (MESSAGES + 1)],
    ("messages", 0): [7, [], "x"],
    **_under(("messages", 0), _JSON_MESSAGE_FAULTS),
    ("messages", 0, "value"): [NOTHING, "x" * (MESSAGE_BYTES + 1)],
    ("nonsense",): [1],
}
_RECEIPTS = {("receipts",): [*NO_LIST, NOTHING, [7], [None], ["nonsense"], ["t/0/0"], ["t/x/0/1"], ["t/-1/0/1"]]}

REQUESTS = [
    Request(
        "POST",
        "/v1/transactions",
        {"gid": "new", "group": "shop", "messages": [_JSON_MESSAGE], "check": {"via": "group"}, "member": "m"},
        {
            **_MESSAGES_FAULTS,
            **_URL_FAULTS,
            **_under(("check",), _CHECK_FAULTS),
            ("gid",): BAD_GIDS,
            ("group",): [*BAD_NAMES, NOTHING],
            ("member",): ["", "m" * 257, *NO_TEXT],
        },
    ),
    Request("POST", "/v1/messages", {"gid": "new", "messages": [_JSON_MESSAGE]}, {**_MESSAGES_FAULTS, ("gid",): BAD_GIDS}),
    Request(
        "POST",
        "/v1/parts/new",
        {"messages": [_JSON_MESSAGE], "index": 1, "ttl_ms": 1_000},
        {
            **{place: wrong for place, wrong in _MESSAGES_FAULTS.items() if place != ("messages",)},
            ("messages",): [*NO_LIST, NOTHING, [7]],
            ("index",): [-1, 2**32, 10**30, *NO_NUMBER],
            ("ttl_ms",): [-1, 10**30, 2**63, "1", []],
        },
    ),
    Request(
        "POST",
        "/v1/transactions/kept/commit",
        {"parts": [{"part": "p", "count": 1}], "by": "producer"},
        {
            ("parts",): [*NO_LIST, [7], [{"part": "p"}], [{"count": 1}]],
            ("parts", 0, "part"): BAD_GIDS,
            ("parts", 0, "count"): [-1, *NO_NUMBER],
            ("by",): ["nobody", 7, None],
            ("nonsense",): [1],
        },
    ),
    Request(
        "POST",
        "/v1/transactions/kept/rollback",
        {"parts": [{"part": "p", "count": 1}]},
        {("parts",): [*NO_LIST, [7]], ("by",): ["nobody", 7, None, []], ("nonsense",): [1]},
    ),
    Request("PUT", "/v1/topics/new", {"queues": 2, "retention_ms": 1_000}, {
        ("queues",): [0, -1, 257, 10**30, "2", 1.5, []],
        ("retention_ms",): [-1, 10**30, "1d", []],
        ("nonsense",): [1],
    }),  # fmt: skip
    Request(
        "POST",
        "/v1/groups/new/receive",
        {"topic": "kept", "max": 1, "wait_ms": 0, "invisible_ms": 1_000},
        {
            ("topic",): [*BAD_NAMES, NOTHING],
            ("max",): [0, -1, 1_001, *NO_NUMBER],
            ("wait_ms",): [-1, 60_001, *NO_NUMBER],
            ("invisible_ms",): [0, -1, 12 * 3600 * 1000 + 1, *NO_NUMBER],
            ("ordered",): [7, "yes", None],
            ("start",): ["yesterday", 7, None],
            ("tags",): [7, "red", [7], {}],
            ("member",): ["", "m" * 257, 7],
            ("nonsense",): [1],
        },
    ),
    Request("POST", "/v1/groups/new/ack", {"receipts": []}, {**_RECEIPTS, ("nonsense",): [1]}),
    Request("POST", "/v1/groups/new/nack", {"receipts": [], "delay_ms": 0}, {
        **_RECEIPTS,
        ("delay_ms",): [-1, 10**30, "1"],
        ("dead",): [7, "yes", None],
        ("reason",): [7, "x" * 1_025],
        ("nonsense",): [1],
    }),  # fmt: skip
    Request("POST", "/v1/groups/new/renew", {"receipts": [], "invisible_ms": 1}, {
        **_RECEIPTS,
        ("invisible_ms",): [*NO_TIME, NOTHING],
        ("nonsense",): [1],
    }),  # fmt: skip
    Request(
        "PUT",
        "/v1/groups/new/offsets",
        {"topic": "kept", "offsets": {"0": 0}, "expected": {"0": 0}},
        {
            ("topic",): [*BAD_NAMES, NOTHING, "unknown"],
            ("offsets",): [*NO_LIST, NOTHING, {"x": 0}, {"-1": 0}, {"999": 0}, {"0": -1}, {"0": 99}, {"0": 10**30}],
            ("offsets", "0"): [-1, 99, 10**30, *NO_NUMBER],
            ("expected",): [7, [], {"0": 5}, {"0": "x"}, {"x": 1}],
            ("nonsense",): [1],
        },
    ),
    Request(
        "POST",
        "/v1/checks/poll",
        {"group": "new", "member": "m", "max": 1, "wait_ms": 0},
        {
            ("group",): [*BAD_NAMES, NOTHING],
            ("member",): ["", "m" * 257, NOTHING, *NO_TEXT],
            ("max",): [0, -1, 1_001, *NO_NUMBER],
            ("wait_ms",): [-1, 60_001, *NO_NUMBER],
            ("nonsense",): [1],
        },
    ),
    Request(
        "POST",
        "/v1/checks/answers",
        {"answers": {"kept": "unknown"}, "reasons": {}, "group": "g", "member": "m"},
        {
            ("answers",): [*NO_LIST, NOTHING, {"a b": "unknown"}, {"kept": "maybe"}, {"kept": 7}],
            ("reasons",): [7, [], {"kept": 7}, {"kept": "x" * 1_025}, {"a b": "x"}],
            ("group",): ["a b", 7],
            ("member",): ["", 7],
            ("nonsense",): [1],
        },
    ),
]

_VALUE = base64.b64encode(b"v").decode()
_OP_MESSAGES: dict[Path, list[Any]] = {
    ("messages",): [*NO_LIST, NOTHING, [7]],
    **_under(("messages", 0), _OP_MESSAGE_FAULTS),
}
_GROUP_FAULTS = {("group",): [*BAD_NAMES, NOTHING], ("nonsense",): [1]}
_TYPED_RECEIPTS = {("receipts",): [*NO_LIST, NOTHING, [7], [None]]}
_MESSAGE = {"topic": "t", "value": _VALUE}

OPERATIONS = [
    Request("", "prepare", {"gid": "new", "group": "shop", "messages": [_MESSAGE], "check": {"via": "group"}}, {
        **_OP_MESSAGES,
        **_URL_FAULTS,
        **_under(("check",), _CHECK_FAULTS),
        **_GROUP_FAULTS,
        ("gid",): [*BAD_GIDS, None, NOTHING],
        ("member",): ["", 7],
    }),  # fmt: skip
    Request("", "part", {"part": "new", "messages": [_MESSAGE], "index": 0, "ttl_ms": 1}, {
        **_OP_MESSAGES,
        ("part",): [*BAD_GIDS, None, NOTHING],
        ("index",): [-1, 1_000_001, *NO_NUMBER],
        ("ttl_ms",): [-1, 10**30, "1"],
    }),  # fmt: skip
    Request("", "commit", {"gid": "kept", "parts": [{"part": "p", "count": 1}]}, {
        ("gid",): [*BAD_GIDS, None, NOTHING],
        ("parts",): [*NO_LIST, [7], [{"part": "p"}]],
        ("parts", 0, "count"): [-1, *NO_NUMBER],
    }),  # fmt: skip
    Request("", "rollback", {"gid": "kept", "parts": []}, {
        ("gid",): [*BAD_GIDS, None, NOTHING],
        ("parts",): [*NO_LIST, [7], ["a b"], [None]],
    }),  # fmt: skip
    Request("", "send", {"gid": "new", "messages": [_MESSAGE]}, {**_OP_MESSAGES, ("gid",): BAD_GIDS}),
    Request("", "ack", {"group": "g", "receipts": []}, {**_GROUP_FAULTS, **_TYPED_RECEIPTS}),
    Request("", "nack", {"group": "g", "receipts": [], "delay_ms": 1}, {
        **_GROUP_FAULTS,
        **_TYPED_RECEIPTS,
        ("delay_ms",): [-1, 10**30, "1"],
        ("dead",): [7, None],
        ("reason",): [7, "x" * 1_025],
    }),  # fmt: skip
    Request("", "renew", {"group": "g", "receipts": [], "invisible_ms": 1}, {
        **_GROUP_FAULTS,
        **_TYPED_RECEIPTS,
        ("invisible_ms",): [*NO_TIME, NOTHING],
    }),  # fmt: skip
    Request("", "offsets", {"group": "g", "topic": "kept", "offsets": {}}, {
        **_GROUP_FAULTS,
        ("topic",): [*BAD_NAMES, NOTHING],
        ("offsets",): [*NO_LIST, NOTHING, {"x": 0}, {"0": -1}, {"0": "x"}, {"0": None}],
        ("expected",): [7, [], {"0": "x"}],
    }),  # fmt: skip
    Request("", "answers", {"answers": {"kept": "unknown"}}, {
        ("answers",): [*NO_LIST, NOTHING, {"a b": "unknown"}, {"kept": "maybe"}],
        ("reasons",): [7, [], {"kept": 7}],
    }),  # fmt: skip
]


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


def in_a_batch(op: Request) -> Request:
    """The operation between two harmless ones: one that is wrong refuses them all."""
    harmless = {"op": "ack", "group": "g", "receipts": []}
    faults = _under(("ops", 1), op.faults)
    return Request("POST", "/v1/batch", {"ops": [harmless, {"op": op.path, **op.body}, harmless]}, faults)


WITH_BODY = REQUESTS + [in_a_batch(op) for op in OPERATIONS]
WHOLE_BODIES: list[Any] = [None, 7, "x", [], [1], {"x": 1}, True, DEEP]

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
    ("POST", "/v1/parts/{}"),
    ("GET", "/v1/groups/{}"),
    ("GET", "/v1/groups/{}/offsets?topic=kept"),
    ("POST", "/v1/groups/{}/receive"),
    ("POST", "/v1/groups/{}/ack"),
]
BAD_SEGMENTS = ["a%20b", "-a", "%2e%2e", "a%00b", "a%0a", "%C3%A4", "a" * 200, "a%2Fb", "a%27--", "%FF", "{x y}", ";login"]


def encodings(body: Any) -> list[tuple[str, bytes]]:
    """Content type and bytes, for each way to say it. msgpack has no numbers beyond 64 bits."""
    found = [(JSON, b"[" * 100_000 if body is DEEP else json.dumps(body).encode())]
    with contextlib.suppress(OverflowError, RecursionError):
        found.append((MSGPACK, msgspec.msgpack.encode(body)))
    return found


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
    rubbish = (kind, draw(st.binary(min_size=1, max_size=200)).strip(b" \t\r\n") or b"\xc1")
    return request, *draw(st.sampled_from([(kind, cut), (kind, encoded + b"\xff"), whole, rubbish]))
