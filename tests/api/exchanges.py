"""A real request to every route, in an order in which each can be carried out."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from raw_client import Answer, RawClient
from tallystick.api.http.route import Route
from tallystick.api.http.table import ROUTES
from tallystick.core.wire import ARROW, JSON, MSGPACK

CALLED = "http://127.0.0.1:1/x"  # nobody listens there
MESSAGE = {"topic": "orders", "value": {"n": 1}, "key": "k", "headers": {"h": "v"}, "tag": "t"}


@dataclass
class Exchange:
    method: str
    path: str
    body: bytes | None
    headers: dict[str, str]
    answer: Answer

    @property
    def route(self) -> Route:
        plain = self.path.partition("?")[0]
        (found,) = (
            one
            for one in ROUTES
            if one.method == self.method and re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", one.path), plain)
        )
        return found


class Speaker:
    """Sends requests and keeps what was said."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self.said: list[Exchange] = []

    def json(self, method: str, path: str, content: Any = None, status: int = 200) -> Any:
        body = None if content is None else json.dumps(content).encode()
        return json.loads(self.raw(method, path, body, JSON, JSON, status).body or b"null")

    def msgpack(self, method: str, path: str, content: Any = None, status: int = 200) -> Any:
        body = None if content is None else msgspec.msgpack.encode(content)
        return msgspec.msgpack.decode(self.raw(method, path, body, MSGPACK, MSGPACK, status).body)

    def raw(self, method: str, path: str, body: bytes | None, sends: str, accepts: str, status: int = 200) -> Answer:
        headers = {"Content-Type": sends, "Accept": accepts}
        answer = self._client.request(method, path, body, headers)
        assert answer.status == status, (method, path, answer)
        self.said.append(Exchange(method, path, body, headers, answer))
        return answer


def all_of_them(client: RawClient) -> list[Exchange]:
    speaker = Speaker(client)
    for play in (_transactions, _messages, _calls, _topics, _groups, _tables, _access, _system):
        play(speaker)
    return speaker.said


def _transactions(api: Speaker) -> None:
    prepared = {"group": "shop", "messages": [MESSAGE], "check": {"after_ms": 3_600_000}}
    for gid in ("yes", "no", "soon"):
        api.json("POST", "/v1/transactions", {"gid": gid, **prepared}, 201)
    api.msgpack("POST", "/v1/transactions", {"gid": "packed", **prepared}, 201)
    api.json("GET", "/v1/transactions/yes")
    api.json("GET", "/v1/transactions?state=prepared&group=shop&limit=1")
    api.json("POST", "/v1/parts/part", {"messages": [MESSAGE], "index": 0}, 201)
    api.json("POST", "/v1/transactions/yes/commit", {"parts": [{"part": "part", "count": 1}]})
    api.json("POST", "/v1/transactions/no/rollback")
    api.json("POST", "/v1/transactions/soon/hurry")
    api.json("GET", "/v1/transactions/nobody", status=404)
    api.json("POST", "/v1/transactions", {"group": "a b"}, 400)
    api.json("POST", "/v1/transactions/no/commit", {}, 409)
    _park(api)
    api.json("POST", "/v1/transactions/stuck/resume")
    api.json(
        "POST", "/v1/batch", {"ops": [{"op": "commit", "gid": "packed"}, {"op": "ack", "group": "g", "receipts": []}]}
    )
    api.msgpack("POST", "/v1/batch", {"ops": [{"op": "commit", "gid": "nobody"}]})


def _park(api: Speaker) -> None:
    """A transaction whose only check brings nothing."""
    check = {"after_ms": 0, "max_checks": 1}
    api.json("POST", "/v1/transactions", {"gid": "stuck", "group": "silent", "check": check}, 201)
    asked: list[Any] = []
    while not asked:
        asked = api.json("POST", "/v1/checks/poll", {"group": "silent", "member": "m", "wait_ms": 5_000})["checks"]
    api.json("POST", "/v1/checks/answers", {"answers": {"stuck": "unknown"}, "reasons": {"stuck": "who knows"}})


def _messages(api: Speaker) -> None:
    api.json(
        "POST", "/v1/messages", {"gid": "sent", "messages": [MESSAGE, {"topic": "orders", "value_base64": "/w=="}]}, 201
    )
    api.json("POST", "/v1/messages", {"gid": "sent", "messages": [MESSAGE]}, 201)
    sink = io.BytesIO()
    table = pa.table({"topic": ["orders"], "value": pa.array([b"x"], pa.binary())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    api.raw("POST", "/v1/parts/arrow?index=0&ttl_ms=60000", sink.getvalue(), ARROW, JSON, 201)
    api.raw("DELETE", "/v1/parts/arrow", None, JSON, JSON, 204)


def _calls(api: Speaker) -> None:
    options = {"max_attempts": 1}
    api.json("POST", "/v1/messages", {"gid": "calls", "calls": [{"url": CALLED}], "call_options": options}, 201)
    api.json("GET", "/v1/transactions/calls/calls?wait_ms=10000")
    while api.json("GET", "/v1/transactions/calls/calls")["state"] != "parked":
        pass
    api.json("GET", "/v1/calls?state=parked&limit=10")
    api.json("GET", "/v1/call-hosts")
    api.json("POST", "/v1/transactions/calls/calls/resume")
    api.json("POST", "/v1/messages", {"gid": "later", "calls": [{"url": CALLED, "delay_ms": 3_600_000}]}, 201)
    api.json("POST", "/v1/transactions/later/calls/stop")
    api.json("PUT", "/v1/call-topics/news/subscribers", {"url": CALLED, "remark": "r"})
    api.json("GET", "/v1/call-topics")
    api.json("GET", "/v1/call-topics/news")
    api.raw("DELETE", f"/v1/call-topics/news/subscribers?url={CALLED}", None, JSON, JSON, 204)
    api.json("PUT", "/v1/call-topics/news/subscribers", {"url": CALLED})
    api.raw("DELETE", "/v1/call-topics/news", None, JSON, JSON, 204)


def _topics(api: Speaker) -> None:
    api.json("PUT", "/v1/topics/made", {"queues": 1, "retention_ms": 60_000})
    api.json(
        "POST", "/v1/messages", {"messages": [{"topic": "made", "value": "a"}, {"topic": "made", "value": [1]}]}, 201
    )
    api.json("GET", "/v1/topics?names=made,orders&wait_ms=0")
    api.json("GET", "/v1/topics/made")
    api.json("GET", "/v1/topics/made/offsets?timestamp=0")
    api.json("GET", "/v1/topics/made/queues/0/messages?offset=0&max=10&max_bytes=1000&wait_ms=0")
    api.msgpack("GET", "/v1/topics/made/queues/0/messages")
    api.raw("GET", "/v1/topics/made/queues/0/messages?end=2&columns=value", None, JSON, ARROW)
    api.json("POST", "/v1/topics/made/trim", {"offsets": {"0": 1}})
    api.json("PUT", "/v1/topics/gone")
    api.raw("DELETE", "/v1/topics/gone", None, JSON, JSON, 204)
    api.json("GET", "/v1/topics?limt=5", status=400)


def _groups(api: Speaker) -> None:
    asked = {"topic": "orders", "max": 1, "invisible_ms": 60_000}
    held = [api.json("POST", "/v1/groups/g/receive", asked)["deliveries"][0]["receipt"] for _ in range(2)]
    api.msgpack("POST", "/v1/groups/g/receive", asked)
    api.json("POST", "/v1/groups/g/renew", {"receipts": held, "invisible_ms": 60_000})
    api.json("POST", "/v1/groups/g/ack", {"receipts": held[:1]})
    api.json("POST", "/v1/groups/g/ack", {"receipts": held[:1]}, 409)
    api.json("POST", "/v1/groups/g/nack", {"receipts": held[1:], "delay_ms": 0, "reason": "later"})
    api.json("POST", "/v1/groups/g/nack", {"receipts": held[1:]}, 409)
    api.json("POST", "/v1/groups/g/renew", {"receipts": held[1:], "invisible_ms": 1}, 409)
    api.json("POST", "/v1/groups/g/ack", {"receipts": ["no receipt"]}, 400)
    api.json("GET", "/v1/groups")
    api.json("GET", "/v1/groups/g")
    api.json("PUT", "/v1/groups/reader/offsets", {"topic": "made", "offsets": {"0": 1}})
    api.json("GET", "/v1/groups/reader/offsets?topic=made")
    api.json("POST", "/v1/groups/g/reset", {"topic": "orders", "to": "earliest"})


def _tables(api: Speaker) -> None:
    api.raw("GET", "/v1/tables/transactions?limit=2&state=committed&older_than_ms=0", None, JSON, ARROW)
    api.json("GET", "/v1/tables/transactions/splits?n=2")
    api.json("GET", "/v1/tables/nothing", status=404)
    api.json("POST", "/v1/ledger/app/0", {"digest": "d"})
    api.json("POST", "/v1/ledger/app/0", {})
    api.json("GET", "/v1/ledger?limit=10&after=a")
    api.json("GET", "/v1/ledger/app")
    api.raw("DELETE", "/v1/ledger/app", None, JSON, JSON, 204)


def _access(api: Speaker) -> None:
    api.json("POST", "/v1/tokens", {"name": "t", "roles": ["reader"], "topics": ["a.*"], "expires_in_ms": 1_000}, 201)
    api.msgpack("POST", "/v1/tokens", {"name": "u", "grants": [{"roles": ["operator"]}]}, 201)
    api.json("POST", "/v1/tokens", {"name": "t", "roles": ["reader"]}, 409)
    api.json("GET", "/v1/tokens")
    api.raw("DELETE", "/v1/tokens/t", None, JSON, JSON, 204)
    api.json("DELETE", "/v1/tokens/t", status=404)
    api.json("GET", "/v1/audit?limit=10&who=ann&action=resolve&since=0")


def _system(api: Speaker) -> None:
    for path in ("/v1/info", "/v1/cluster", "/v1/whoami", "/healthz", "/readyz", "/openapi.json"):
        api.json("GET", path)
    api.raw("GET", "/metrics", None, JSON, "*/*")
    api.raw("GET", "/docs", None, JSON, "text/html")


def routes_of(said: list[Exchange]) -> Iterator[tuple[str, str]]:
    """The routes that carried out what they were asked for."""
    return ((one.method, one.route.path) for one in said if one.answer.status < 300)
