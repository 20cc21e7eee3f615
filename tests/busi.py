"""A small branch service for tests: real HTTP, answers scripted for each transaction, and a record of every request.

    with running_busi() as busi:
        busi.script(gid, "01", ONGOING, FAILURE)   # first, second; SUCCESS from then on
        ... steps=[{"action": busi.url + "/TransIn"}], query_prepared=busi.url + "/QueryPrepared" ...
        busi.calls(gid, "01")                      # what came, in order

Branch "00" is the check-back. A request whose body is a JSON-RPC envelope is answered with one.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Reply:
    """What a branch answers; `hold` seconds pass before it does."""

    status: int = 200
    body: str = '{"dtm_result":"SUCCESS"}'
    hold: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()
    jsonrpc_code: int | None = None
    bare: bool = False  # to JSON-RPC as well: the status and the body themselves, without an envelope


SUCCESS = Reply()
FAILURE = Reply(409, '{"dtm_result":"FAILURE"}', jsonrpc_code=-32901)
ONGOING = Reply(425, '{"dtm_result":"ONGOING"}', jsonrpc_code=-32902)
ERROR = Reply(500, "something broke", jsonrpc_code=-32000)


@dataclass
class Called:
    """One request as it came; its fields are those of the query, or of a JSON-RPC call's params."""

    method: str
    path: str
    fields: dict[str, str]
    headers: dict[str, str]
    body: bytes
    at: float
    envelope: dict[str, Any] | None = None

    @property
    def gid(self) -> str:
        return self.fields.get("gid", "")

    @property
    def branch(self) -> str:
        return self.fields.get("branch_id", "")


@dataclass
class Scripts:
    """What to answer and what was asked, shared by every face of the service. Safe to use from any thread."""

    default: Reply | Callable[[Called], Reply] = SUCCESS
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _answers: dict[tuple[str, str], deque[Reply]] = field(default_factory=lambda: defaultdict(deque))
    _calls: list[Called] = field(default_factory=list)

    def script(self, gid: str, branch: str, *replies: Reply) -> None:
        """The next answers to one branch of one transaction, in order."""
        with self._lock:
            self._answers[gid, branch].extend(replies)

    def calls(self, gid: str, branch: str | None = None) -> list[Called]:
        with self._lock:
            return [one for one in self._calls if one.gid == gid and branch in (None, one.branch)]

    def take(self, called: Called) -> Reply:
        """Record a request and tell its answer."""
        with self._lock:
            self._calls.append(called)
            waiting = self._answers.get((called.gid, called.branch))
            if waiting:
                return waiting.popleft()
            return self.default if isinstance(self.default, Reply) else self.default(called)


class Busi(Scripts):
    """The HTTP face."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def running_busi(port: int = 0) -> Iterator[Busi]:
    busi = Busi()
    server = _Server(("127.0.0.1", port), _handler(busi))
    busi.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield busi
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broker that is killed leaves broken connections behind; they are no news."""


def _handler(busi: Busi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            fields = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            envelope = _envelope(body)
            if envelope is not None:
                fields |= {name: str(value) for name, value in envelope["params"].items()}
            called = Called(self.command, parts.path, fields, headers, body, time.time(), envelope)
            reply = busi.take(called)
            if reply.hold:
                time.sleep(reply.hold)
            self._answer(reply, envelope)

        def _answer(self, reply: Reply, envelope: dict[str, Any] | None) -> None:
            status, text = reply.status, reply.body
            if envelope is not None and not reply.bare:
                error = None if reply.jsonrpc_code is None else {"code": reply.jsonrpc_code, "message": reply.body}
                answer = {"jsonrpc": "2.0", "id": envelope.get("id"), "error": error, "result": {}}
                status, text = 200, json.dumps(answer)
            content = text.encode()
            self.send_response(status)
            for name, value in reply.headers:
                self.send_header(name, value)
            if status not in (204, 304):
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if status not in (204, 304):
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def log_message(self, *_: Any) -> None:
            """The record is in `calls`."""

    return Handler


def _envelope(body: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        found = json.loads(body)
        if isinstance(found, dict) and "jsonrpc" in found and isinstance(found.get("params"), dict):
            return found
    return None
