"""Some thousand requests with something wrong: each is refused and told why, nothing is stored, the broker lives on."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed import BAD_SEGMENTS, PATHS, QUERIES, broken, encodings, no_bodies, wrong_bodies
from templates import MESSAGE_BYTES, MESSAGES, OPERATIONS, REQUEST_BYTES, REQUESTS, WITH_BODY, Path, Request

from brokers import BrokerProcess, running_broker
from raw_client import Answer, RawClient
from tallystick.api.http.table import ROUTES
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, ClientOp, Prepare, PreparePart, Rollback, Send
from tallystick.core.wire import JSON, MSGPACK, BatchRequest

THOROUGH = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
LIMITS = {
    "max_message_bytes": MESSAGE_BYTES,
    "max_request_bytes": REQUEST_BYTES,
    "max_transaction_messages": MESSAGES,
    "log_level": "warning",
}


class Target:
    """A broker with something in it, which must be the same at the end."""

    def __init__(self, broker: BrokerProcess, client: RawClient) -> None:
        self.broker, self.client = broker, client
        client.do(Prepare("kept", "shop", [OutgoingMessage("kept", b"half")]))
        client.do(Send([OutgoingMessage("kept", b"whole", key="k")], "sent"))
        self.before = self.shown()

    def shown(self) -> dict[str, Any]:
        time.sleep(1.1)  # the metrics look at the store once a second
        self.client.close()  # a connection that was idle for long may be gone
        client = self.client
        info = client.json("GET", "/v1/info").json()
        numbers = [line for line in client.request("GET", "/metrics").body.decode().splitlines() if counted(line)]
        return {
            "topics": client.json("GET", "/v1/topics").json(),
            "transactions": client.json("GET", "/v1/transactions").json(),
            "groups": client.json("GET", "/v1/groups").json(),
            "call topics": client.json("GET", "/v1/call-topics").json(),
            "tokens": client.json("GET", "/v1/tokens").json(),
            "oldest": info["oldest_pending_at"],
            "numbers": sorted(numbers),
        }

    def refuses(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        answer = self.client.request(method, path, body, headers)
        assert 400 <= answer.status < 500, (answer.status, answer.body[:500])
        problem = answer.problem()
        assert problem.status == answer.status
        assert problem.title
        assert problem.detail
        assert problem.code not in ("", "error")
        return answer


def counted(line: str) -> bool:
    names = ("prepared", "committed", "rolled_back", "pending", "parked", "parts", "leases", "lag", "checks")
    timed = "_created" in line or "_seconds" in line
    return line.startswith(tuple(f"tallystick_{name}" for name in names)) and not timed


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with running_broker(**LIMITS) as broker, RawClient(broker.url) as client:
        made = Target(broker, client)
        yield made
        assert made.shown() == made.before, "a refused request has stored something"
        assert broker.running
        assert "Traceback" not in broker.log_text()


def title(request: Request) -> str:
    return f"{request.method} {request.path} {len(json.dumps(request.body))}"


def names(place: str, path: Path) -> bool:
    """Whether the told place is the one that is wrong, or what holds it."""
    wanted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    flat = place.replace("[...]", "")
    return wanted.startswith(flat) or flat.startswith(wanted) or flat.partition("[")[0] in wanted


@pytest.mark.parametrize("request_", WITH_BODY, ids=title)
def test_one_thing_wrong_in_a_body(target: Target, request_: Request) -> None:
    for path, values in request_.faults.items():
        for value in values:
            body = broken(request_.body, path, value)
            for kind, encoded in encodings(body):
                answer = target.refuses(request_.method, request_.path, encoded, {"Content-Type": kind})
                told = answer.problem().field or ""
                assert names(told, path) if told else str(path[-1]) in answer.problem().detail, (path, value, answer)


@settings(THOROUGH, max_examples=500)
@given(wrong_bodies())
def test_several_things_wrong_in_a_body(target: Target, wrong: tuple[Request, str, bytes]) -> None:
    request, kind, body = wrong
    target.refuses(request.method, request.path, body, {"Content-Type": kind})


@settings(THOROUGH, max_examples=500)
@given(no_bodies())
def test_bodies_that_are_cut_off_or_rubbish(target: Target, wrong: tuple[Request, str, bytes]) -> None:
    request, kind, body = wrong
    target.refuses(request.method, request.path, body, {"Content-Type": kind})


@pytest.mark.parametrize("request_", WITH_BODY, ids=title)
def test_content_types_that_nobody_speaks(target: Target, request_: Request) -> None:
    body = json.dumps(request_.body).encode()
    for kind in ("text/html", "application/xml", "application/json+x", "multipart/form-data; boundary=x", "x", "/"):
        problem = target.refuses(request_.method, request_.path, body, {"Content-Type": kind}).problem()
        assert problem.field == "Content-Type"
    msgpack_as_json = {"Content-Type": JSON}
    target.refuses(request_.method, request_.path, b"\x81\xa1x\x01", msgpack_as_json)
    target.refuses(request_.method, request_.path, body, {"Content-Type": MSGPACK})


@pytest.mark.parametrize("path", QUERIES)
def test_queries_with_something_wrong(target: Target, path: str) -> None:
    for name, values in QUERIES[path].items():
        for value in values:
            problem = target.refuses("GET", f"{path}?{name}={quote(value)}").problem()
            assert problem.field == name, (value, problem)
    if path.endswith("/offsets"):
        assert target.refuses("GET", path).problem().field == "topic"


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_names_in_paths_that_are_no_names(target: Target, method: str, path: str) -> None:
    plain = method != "POST" or "transactions" in path
    body = None if plain else b'{"messages": [], "topic": "kept", "receipts": []}'
    for segment in BAD_SEGMENTS:
        target.refuses(method, path.format(segment), body)


NOWHERE = ["/", "/v1", "/v2/batch", "/v1/batch/", "/v1/nothing", "/v1/topics/", "//v1/topics"]
NOWHERE += [f"/v1/topics/{place}/messages" for place in ("a/queues/x", "kept/queues/-1", f"kept/queues/{10**30}")]


@pytest.mark.parametrize("path", NOWHERE)
def test_paths_that_lead_nowhere(target: Target, path: str) -> None:
    assert target.refuses("GET", path).status in (404, 405)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_methods_that_a_route_does_not_have(target: Target, route: Any) -> None:
    path = route.path.replace("{queue:int}", "0").replace("{version:int}", "0").replace("{", "").replace("}", "")
    known = {one.method for one in ROUTES if one.path == route.path}
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} - known:
        assert target.refuses(method, path).status == 405


# --- sizes -----------------------------------------------------------------------------------------------------------


def padded(request: Request, size: int) -> bytes:
    body = json.dumps(request.body).encode()
    return body + b" " * (size - len(body))


@pytest.mark.parametrize("request_", WITH_BODY, ids=title)
def test_requests_larger_than_the_limit(target: Target, request_: Request) -> None:
    body = padded(request_, REQUEST_BYTES + 1)
    problem = target.refuses(request_.method, request_.path, body, {"Content-Type": JSON}).problem()
    assert (problem.status, problem.code) == (413, "too_large")
    assert str(REQUEST_BYTES) in problem.detail
    pieces = (body[at : at + 5_000] for at in range(0, len(body), 5_000))
    assert target.refuses(request_.method, request_.path, pieces, {"Content-Type": JSON}).status == 413


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "99999999999999999999", "+5", "5 5"])
def test_a_declared_length_that_is_none_or_too_much(target: Target, length: str) -> None:
    """Judged before a byte of the body is read, by us or by the server beneath."""
    for path in ("/v1/batch", "/v1/messages"):
        with socket.create_connection(("127.0.0.1", target.broker.port), timeout=10) as connection:
            lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Type: {JSON}", f"Content-Length: {length}", "", ""]
            connection.sendall("\r\n".join(lines).encode())
            assert connection.recv(65_536).startswith((b"HTTP/1.1 400", b"HTTP/1.1 413")), length


@pytest.mark.parametrize("op", ["send", "prepare", "part"])
@pytest.mark.parametrize("kind", [JSON, MSGPACK])
def test_messages_that_are_too_large_or_too_many(target: Target, op: str, kind: str) -> None:
    def ask(count: int, size: int) -> Answer:
        messages = [OutgoingMessage("kept", bytes(size)) for _ in range(count)]
        ops = {
            "send": Send(messages),
            "prepare": Prepare("new", "shop", messages),
            "part": PreparePart("new", messages),
        }
        encoder = msgspec.msgpack if kind == MSGPACK else msgspec.json
        return target.refuses("POST", "/v1/batch", encoder.encode(BatchRequest([ops[op]])), {"Content-Type": kind})

    large = ask(1, MESSAGE_BYTES + 1).problem()
    assert (large.code, large.field) == ("too_large", "ops[0].messages[0].value")
    if op != "part":  # a part may hold many more, it comes from a Spark task
        many = ask(MESSAGES + 1, 1).problem()
        assert (many.code, many.field) == ("too_large", "ops[0].messages")


def test_more_operations_than_one_request_may_hold() -> None:
    """Many small ones: far below the limit of bytes, and still too much to hold everybody else up for."""
    with running_broker(log_level="warning") as broker, RawClient(broker.url) as client:
        for ops in ([Rollback(f"g{n}") for n in range(10_001)], [Ack("g", ["t/0/0/1"] * 10_001)]):
            answer = client.request(
                "POST", "/v1/batch", msgspec.msgpack.encode(BatchRequest(ops)), {"Content-Type": MSGPACK}
            )
            assert answer.status == 400
            assert (answer.problem().field or "").startswith("ops")
            assert "10000" in answer.problem().detail
        assert client.batch(*[Rollback(f"g{n}") for n in range(10_000)]) == [None] * 10_000


def test_there_are_more_than_two_thousand_of_them() -> None:
    """Not counting those that hypothesis makes."""
    one_fault = [(one, path, value) for one in WITH_BODY for path, values in one.faults.items() for value in values]
    assert sum(len(encodings(broken(one.body, path, value))) for one, path, value in one_fault) > 2_000


def test_every_route_with_a_body_is_among_the_templates() -> None:
    tried = {(one.method, re.sub(r"/(new|kept|0)(?=/|\Z)", "/{}", one.path)) for one in WITH_BODY}
    for route in ROUTES:
        if route.method in ("POST", "PUT") and not route.path.endswith(("/resume", "/stop", "/hurry")):
            assert (route.method, re.sub(r"\{[^}]*\}", "{}", route.path)) in tried, route.path
    assert {op.path for op in OPERATIONS} == {kind.__struct_config__.tag for kind in ClientOp.__args__}  # type: ignore[attr-defined]
    assert len(REQUESTS) > 10


@settings(THOROUGH, max_examples=60)
@given(st.text(min_size=1, max_size=60), st.sampled_from(["GET", "POST"]))
def test_arbitrary_paths(target: Target, text: str, method: str) -> None:
    answer = target.client.request(method, "/v1/transactions/" + quote(text.encode("utf-8", "surrogatepass"), safe=""))
    assert 400 <= answer.status < 500


def test_what_is_compared_would_show_a_request_that_was_carried_out() -> None:
    """The comparison itself is tried: each of these is valid, so each must show."""
    with running_broker(**LIMITS) as broker, RawClient(broker.url) as client:
        target = Target(broker, client)
        before = target.before
        for number, valid in enumerate(REQUESTS):
            if valid.path.startswith(("/v1/checks", "/v1/groups")) or valid.path.endswith(("/commit", "/trim")):
                continue
            body = {**valid.body, **({"gid": f"other-{number}"} if "gid" in valid.body else {})}
            assert client.json(valid.method, valid.path, body).status < 300
            after = target.shown()
            assert after != before, valid.path
            before = after
