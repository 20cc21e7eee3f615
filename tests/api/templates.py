"""Valid requests of every route, and what must not be in them.

A fault is a place in a body (or a query) and a value that must not be there; `NOTHING` stands for a field left out.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

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
NO_MAP: list[Any] = [7, "x", [], None, True]
TOO_LONG = "x" * 9_000
MANY = [str(number) for number in range(65)]
BAD_URLS = ["http://example.com/", "file:///etc/passwd", "http://[::1", "x", ""]
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
    ("headers",): [7, "x", [], {"": "v"}, {"h": 7}, {"h": TOO_LONG}, {"h" * 129: "v"}, dict.fromkeys(MANY, "v")],
    ("tag",): [*NO_TEXT, "x" * 129],
    ("deliver_at",): NO_TIME,
    ("delay_ms",): NO_TIME,
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
    ("headers",): [7, "x", [], {"": "v"}, {"h": 7}],
    ("timeout_ms",): [-1, 0, 600_001, 10**30, "1"],
    ("nonsense",): [1],
}
_URL_FAULTS: dict[Path, list[Any]] = {
    ("check",): [
        {"via": "none"},
        {"via": "url"},
        {"via": "url", "target": "http://127.0.0.1:1/", "headers": {"h": "a\r\nb: c"}},
        {"via": "database"},
        {"via": "database", "target": "unknown"},
        *({"via": "url", "target": url} for url in BAD_URLS),
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
_CALL = {"url": "http://127.0.0.1:1/x", "headers": {"h": "v"}, "timeout_ms": 1, "delay_ms": 60_000, "branch": "b"}
_HEADER_FAULTS = [{"h": "a\r\nb: c"}, {"h\r\n": "v"}, {"Host": "x"}, {"Content-Length": "1"}, {"a b": "c"}, {"h": "\0"}]
_CALL_FAULTS: dict[Path, list[Any]] = {
    ("url",): [*BAD_URLS, "x" * 2_049, "grpc://example.com:1/s/m", 7, None, NOTHING],
    ("headers",): [7, "x", [], {"": "v"}, {"h": 7}, {"h": TOO_LONG}, dict.fromkeys(MANY, "v"), *_HEADER_FAULTS],
    ("protocol",): ["smtp", 7, None],
    ("timeout_ms",): [-1, 0, 600_001, 10**30, "1", 1.5],
    ("delay_ms",): NO_TIME,
    ("branch",): ["a b", "x" * 65, "a/b", 7, None],
    ("nonsense",): [1],
}
_CALLS_FAULTS: dict[Path, list[Any]] = {
    ("calls",): [*NO_LIST, [7], [None], [{"url": f"http://127.0.0.1:{at}/"} for at in range(1, MESSAGES + 2)]],
    **_under(("calls", 0), _CALL_FAULTS),
    ("call_options",): [7, "x", [], {"concurrent": 7}, {"retry_ms": -1}, {"max_attempts": 0}, {"nonsense": 1}],
    ("remark",): ["x" * 8_193, 7, None],
}
_JSON_CALLS_FAULTS = {
    **_CALLS_FAULTS,
    ("calls", 0, "url"): [*_CALL_FAULTS[("url",)], "topic://", "topic://unknown"],
    ("calls", 0, "body"): ["x" * (MESSAGE_BYTES + 1)],
    ("calls", 0, "body_base64"): ["?", 7, "A"],
}
_RECEIPTS = {("receipts",): [*NO_LIST, NOTHING, [7], [None], ["nonsense"], ["t/0/0"], ["t/x/0/1"], ["t/-1/0/1"]]}

REQUESTS = [
    Request(
        "POST",
        "/v1/transactions",
        {
            "gid": "new",
            "group": "shop",
            "messages": [_JSON_MESSAGE],
            "check": {"via": "group"},
            "member": "m",
            "calls": [_CALL],
            "call_options": {"concurrent": True, "retry_ms": 1, "max_attempts": 2},
            "remark": "r",
        },
        {
            **_MESSAGES_FAULTS,
            ("messages",): [*NO_LIST, [7], [None], [_JSON_MESSAGE] * (MESSAGES + 1)],
            **_JSON_CALLS_FAULTS,
            **_URL_FAULTS,
            **_under(("check",), _CHECK_FAULTS),
            ("gid",): BAD_GIDS,
            ("group",): [*BAD_NAMES, NOTHING],
            ("member",): ["", "m" * 257, *NO_TEXT],
        },
    ),
    Request(
        "POST", "/v1/messages", {"gid": "new", "messages": [_JSON_MESSAGE]}, {**_MESSAGES_FAULTS, ("gid",): BAD_GIDS}
    ),
    Request(
        "POST",
        "/v1/messages",
        {"gid": "new", "calls": [_CALL], "call_options": {"concurrent": True}},
        {**_JSON_CALLS_FAULTS, ("gid",): [*BAD_GIDS, NOTHING, None]},
    ),
    Request(
        "POST",
        "/v1/tokens",
        {"name": "new", "roles": ["reader"]},
        {
            ("name",): [*BAD_NAMES, NOTHING],
            ("roles",): [*NO_LIST, [], ["root"], [7], NOTHING],
            ("topics",): [*NO_LIST, [], ["a b"], [""], [7], MANY],
            ("groups",): [*NO_LIST, [], ["../x"], [None]],
            ("hosts",): [*NO_LIST, [], ["http://a/"], ["a:b"]],
            ("grants",): [7, "x", {}, None, [{}], [{"roles": []}], [{"roles": ["admin"]}]],
            ("expires_in_ms",): [0, -1, 10**30, "1", 1.5],
            ("limits",): [7, "x", [], {"max_in_flight": -1}, {"bytes_per_second": "x"}, {"nonsense": 1}],
            ("nonsense",): [1],
        },
    ),
    Request(
        "PUT",
        "/v1/call-topics/new/subscribers",
        {"url": "http://127.0.0.1:1/x", "remark": "r"},
        {
            ("url",): [*BAD_URLS, "x" * 2_049, 7, None, NOTHING],
            ("remark",): ["x" * 8_193, 7, None],
            ("nonsense",): [1],
        },
    ),
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
        {"parts": [{"part": "p", "count": 1}], "by": "producer", "delay_ms": 0},
        {
            ("delay_ms",): NO_TIME,
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
    Request(
        "POST",
        "/v1/ledger/new/0",
        {"parts": [{"part": "p", "count": 0}], "gid": "new", "digest": "d"},
        {
            ("digest",): [*NO_TEXT, None, "d" * 129],
            ("parts",): [*NO_LIST, [7], [{"part": "p"}], [{"count": 1}], [{"part": "p", "count": 1}]],
            ("parts", 0, "part"): BAD_GIDS,
            ("parts", 0, "count"): [-1, 1, *NO_NUMBER],
            ("gid",): [*BAD_GIDS, "kept"],
            ("nonsense",): [1],
        },
    ),
    Request(
        "POST",
        "/v1/topics/kept/trim",
        {"offsets": {"0": 0}},
        {
            ("offsets",): [*NO_MAP, NOTHING, {"x": 0}, {"-1": 0}, {"999": 0}, {"0": -1}, {"0": 99}, {"0": 10**30}],
            ("nonsense",): [1],
        },
    ),
    Request(
        "PUT",
        "/v1/topics/new",
        {"queues": 2, "retention_ms": 1_000},
        {
            ("queues",): [0, -1, 257, 10**30, "2", 1.5, []],
            ("retention_ms",): [-1, 10**30, "1d", []],
            ("nonsense",): [1],
        },
    ),
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
    Request(
        "POST",
        "/v1/groups/new/nack",
        {"receipts": [], "delay_ms": 0},
        {
            **_RECEIPTS,
            ("delay_ms",): [-1, 10**30, "1"],
            ("dead",): [7, "yes", None],
            ("reason",): [7, "x" * 1_025],
            ("nonsense",): [1],
        },
    ),
    Request(
        "POST",
        "/v1/groups/new/renew",
        {"receipts": [], "invisible_ms": 1},
        {
            **_RECEIPTS,
            ("invisible_ms",): [*NO_TIME, NOTHING],
            ("nonsense",): [1],
        },
    ),
    Request(
        "PUT",
        "/v1/groups/new/offsets",
        {"topic": "kept", "offsets": {"0": 0}, "expected": {"0": 0}},
        {
            ("topic",): [*BAD_NAMES, NOTHING, "unknown"],
            ("offsets",): [*NO_MAP, NOTHING, {"x": 0}, {"-1": 0}, {"999": 0}, {"0": -1}, {"0": 99}, {"0": 10**30}],
            ("offsets", "0"): [-1, 99, 10**30, *NO_NUMBER],
            ("expected",): [7, [], {"0": 5}, {"0": "x"}, {"x": 1}],
            ("nonsense",): [1],
        },
    ),
    Request(
        "POST",
        "/v1/groups/new/reset",
        {"topic": "kept", "offsets": {"0": 0}},
        {
            ("topic",): [*BAD_NAMES, NOTHING, "unknown"],
            ("to",): ["yesterday", 7, "latest", "earliest", []],
            ("offsets",): [7, [], {}, NOTHING, {"x": 0}, {"-1": 0}, {"999": 0}, {"0": -1}, {"0": 99}, {"0": 10**30}],
            ("offsets", "0"): [-1, 99, 10**30, *NO_NUMBER],
            ("timestamp",): [-1, 10**30, "now", 0, []],
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
            ("answers",): [*NO_MAP, NOTHING, {"a b": "unknown"}, {"kept": "maybe"}, {"kept": 7}],
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
    Request(
        "",
        "prepare",
        {"gid": "new", "group": "shop", "messages": [_MESSAGE], "check": {"via": "group"}, "calls": [_CALL]},
        {
            **_OP_MESSAGES,
            **_CALLS_FAULTS,
            ("calls", 0, "body"): [7, None, []],
            **_URL_FAULTS,
            **_under(("check",), _CHECK_FAULTS),
            **_GROUP_FAULTS,
            ("gid",): [*BAD_GIDS, None, NOTHING],
            ("member",): ["", 7],
        },
    ),
    Request(
        "",
        "part",
        {"part": "new", "messages": [_MESSAGE], "index": 0, "ttl_ms": 1},
        {
            **_OP_MESSAGES,
            ("part",): [*BAD_GIDS, None, NOTHING],
            ("index",): [-1, 1_000_001, *NO_NUMBER],
            ("ttl_ms",): [-1, 10**30, "1"],
        },
    ),
    Request(
        "",
        "commit",
        {"gid": "kept", "parts": [{"part": "p", "count": 1}], "delay_ms": 0},
        {
            ("delay_ms",): NO_TIME,
            ("gid",): [*BAD_GIDS, None, NOTHING],
            ("parts",): [*NO_LIST, [7], [{"part": "p"}]],
            ("parts", 0, "count"): [-1, *NO_NUMBER],
        },
    ),
    Request(
        "",
        "commit_batch",
        {"app": "new", "version": 0, "gid": "new", "parts": [{"part": "p", "count": 1}], "digest": "d"},
        {
            ("digest",): [*NO_TEXT, None, "d" * 129],
            ("app",): [*BAD_GIDS, "a" * 101, None, NOTHING],
            ("version",): [-1, *NO_NUMBER, NOTHING],
            ("gid",): [*BAD_GIDS, None, NOTHING],
            ("parts",): [*NO_LIST, [7], [{"part": "p"}]],
            ("parts", 0, "count"): [-1, *NO_NUMBER],
        },
    ),
    Request("", "drop_parts", {"parts": ["p"]}, {("parts",): [*NO_LIST, NOTHING, [7], ["a b"], [None]]}),
    Request(
        "",
        "rollback",
        {"gid": "kept", "parts": []},
        {
            ("gid",): [*BAD_GIDS, None, NOTHING],
            ("parts",): [*NO_LIST, [7], ["a b"], [None]],
        },
    ),
    Request(
        "",
        "send",
        {"gid": "new", "messages": [_MESSAGE], "calls": [_CALL]},
        {**_OP_MESSAGES, **_CALLS_FAULTS, ("gid",): BAD_GIDS},
    ),
    Request("", "ack", {"group": "g", "receipts": []}, {**_GROUP_FAULTS, **_TYPED_RECEIPTS}),
    Request(
        "",
        "nack",
        {"group": "g", "receipts": [], "delay_ms": 1},
        {
            **_GROUP_FAULTS,
            **_TYPED_RECEIPTS,
            ("delay_ms",): [-1, 10**30, "1"],
            ("dead",): [7, None],
            ("reason",): [7, "x" * 1_025],
        },
    ),
    Request(
        "",
        "renew",
        {"group": "g", "receipts": [], "invisible_ms": 1},
        {
            **_GROUP_FAULTS,
            **_TYPED_RECEIPTS,
            ("invisible_ms",): [*NO_TIME, NOTHING],
        },
    ),
    Request(
        "",
        "offsets",
        {"group": "g", "topic": "kept", "offsets": {}},
        {
            **_GROUP_FAULTS,
            ("topic",): [*BAD_NAMES, NOTHING],
            ("offsets",): [*NO_MAP, NOTHING, {"x": 0}, {"0": -1}, {"0": "x"}, {"0": None}],
            ("expected",): [7, [], {"0": "x"}],
            ("mirror",): [7, "yes", None],
        },
    ),
    Request(
        "",
        "answers",
        {"answers": {"kept": "unknown"}},
        {
            ("answers",): [*NO_MAP, NOTHING, {"a b": "unknown"}, {"kept": "maybe"}],
            ("reasons",): [7, [], {"kept": 7}],
        },
    ),
]


def in_a_batch(op: Request) -> Request:
    """The operation between two harmless ones: one that is wrong refuses them all."""
    harmless = {"op": "ack", "group": "g", "receipts": []}
    faults = _under(("ops", 1), op.faults)
    return Request("POST", "/v1/batch", {"ops": [harmless, {"op": op.path, **op.body}, harmless]}, faults)


WITH_BODY = REQUESTS + [in_a_batch(op) for op in OPERATIONS]
WHOLE_BODIES: list[Any] = [None, 7, "x", [], [1], {"x": 1}, True, DEEP]
