"""Servers that answer every request, and are no broker. Every command names them with one error."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator

import msgspec
import pytest
from command_line import tallystick

from tallystick.answers import ANSWERS, ANY
from tallystick.api.http.table import ROUTES
from tallystick.core.errors import BrokerUnavailable, TallystickError
from tallystick.core.wire import JSON
from tallystick.link import Link

COMMANDS = [
    "topics list",
    "topics list --json",
    "topics show orders",
    "topics create orders --queues 2",
    "topics delete orders --yes",
    "tail orders",
    "tail orders --no-follow --json",
    "send orders hello --timeout 500ms",
    "groups list",
    "groups show shop",
    "groups reset shop --topic orders --to-earliest --yes",
    "tx list",
    "tx show 3f2a",
    "tx commit 3f2a",
    "tx resume 3f2a",
    "calls list",
    "calls show 3f2a",
    "calls hosts",
    "call-topics list",
    "call-topics show orders",
    "call-topics subscribe orders http://127.0.0.1:9/",
    "cluster",
    "tokens list",
    "audit",
    "doctor --no-environment",
]
BODIES = ["{}", "[]", "null", "7", '{"topics": [{}], "position": 0}', '{"topics": 5}', "<html>", "", "[" * 100_000]


@contextlib.contextmanager
def stranger(body: str, status: int = 200) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_says_that_it_is_no_broker(words: str) -> None:
    with stranger("{}") as url:
        done = tallystick(*words.split(), url=url)
    said = done.out if words.startswith("doctor") else done.err
    assert url in said
    assert "does not answer like a Tallystick broker (" in said
    assert "). Check the address." in said
    assert "Traceback" not in done.err
    assert done.code == (1 if words.startswith("doctor") else 4)


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_so_does_every_request_of_a_link_whatever_is_answered(body: str) -> None:
    with stranger(body) as url, Link(url) as link:
        for ask in (
            lambda: link.get("topics"),
            lambda: link.put("topics", "orders", queues=2),
            lambda: link.delete("topics", "orders"),
            lambda: link.post("transactions", "g", "commit"),
            lambda: link.post_arrow("parts", "part", body=b""),
            lambda: link.get_bytes("application/msgpack", "topics", "orders", "queues", "0", "messages"),
            lambda: link.arrow("tables", "half").__enter__(),
            link.ready,
        ):
            with pytest.raises(BrokerUnavailable, match="does not answer like a Tallystick broker"):
                ask()


@pytest.mark.parametrize("body", BODIES[:6], ids=range(6))
@pytest.mark.parametrize("status", [201, 301, 404, 500, 503])
def test_an_error_is_named_whatever_is_in_it(body: str, status: int) -> None:
    with (
        stranger(body, status) as url,
        Link(url) as link,
        pytest.raises(TallystickError, match=rf"status {status}|like a"),
    ):
        link.get("topics")


def test_a_link_knows_the_type_of_every_answer() -> None:
    """Those that are routes of the API in JSON, and each with the fields that it has there."""
    given = {
        (one.method, *(ANY if "{" in part else part for part in one.path.removeprefix("/v1/").split("/"))): kind
        for one in ROUTES
        if (kind := one.gives.get(JSON)) is not None and one.path.startswith("/v1/")
    }
    assert given.keys() == ANSWERS.keys()
    for request, kind in given.items():
        known = ANSWERS[request]
        if known is kind:
            continue
        fields = {one.name: one.required for one in msgspec.structs.fields(kind)}
        assert {one.name: one.required for one in msgspec.structs.fields(known)} == fields, request
