"""A service that brokers call: real HTTP, in the test's own process, so that it can strike the broker at any moment.

Everything that arrives is kept in order. A number counts arrivals and answers alike, so that "before" and "after" can
be told from it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Arrival:
    """A call as it came in; `answered` and `status` are 0 until the answer is on its way."""

    number: int
    gid: str
    branch: str
    body: bytes
    attempt: int
    answered: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    path: str = ""


Answer = Callable[[Arrival], int]
"""The status of the answer to a call; it may take its time, or strike the broker first."""


def always(status: int) -> Answer:
    return lambda _: status


@dataclass
class Service:
    """`answer` and `truth` may be changed while it runs. `truth` answers check-backs: a status by gid."""

    answer: Answer = field(default_factory=lambda: always(200))
    truth: Callable[[str], int] = field(default_factory=lambda: lambda _: 425)
    after: Callable[[Arrival], None] = field(default_factory=lambda: lambda _: None)
    arrivals: list[Arrival] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    port: int = 0
    _attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def check_url(self) -> str:
        return f"{self.url}/check"

    def next_number(self) -> int:
        with self._lock:
            return next(self._numbers)

    def arrive(self, path: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> Arrival:
        with self._lock:
            gid, branch = query["gid"], query["branch_id"]
            self._attempts[gid, branch] += 1
            attempt = self._attempts[gid, branch]
            found = Arrival(next(self._numbers), gid, branch, body, attempt, headers=headers, path=path)
            self.arrivals.append(found)
            return found

    def successes(self) -> set[tuple[str, str]]:
        with self._lock:
            return {(one.gid, one.branch) for one in self.arrivals if one.status == 200}

    def of(self, gid: str) -> list[tuple[str, int]]:
        """The calls of a transaction in their order: branch and answer."""
        with self._lock:
            return [(one.branch, one.status) for one in self.arrivals if one.gid == gid]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _serve(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        # The broker may be gone before it hears the answer: that is its business, and ours to count as given.
        with contextlib.suppress(OSError):
            if parts.path == "/check":
                self.service.checks.append(query["gid"])
                self._reply(self.service.truth(query["gid"]))
                return
            arrival = self.service.arrive(parts.path, query, dict(self.headers.items()), body)
            status = self.service.answer(arrival)
            arrival.answered, arrival.status = self.service.next_number(), status
            self._reply(status)
            self.service.after(arrival)

    def _reply(self, status: int) -> None:
        word = {200: "SUCCESS", 409: "FAILURE", 425: "ONGOING"}.get(status)
        data = json.dumps({"dtm_result": word} if word else {"message": "no"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, format: str, *rest: Any) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that a killed broker left behind is no error; what matters is in the arrivals."""


@contextlib.contextmanager
def running(service: Service) -> Iterator[Service]:
    """The service at work, at its port of before if it had one. What it has seen stays."""
    handler = type("Handler", (_Handler,), {"service": service})
    server = _Server(("127.0.0.1", service.port), handler)
    service.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def hanging() -> Iterator[int]:
    """The port of a service that takes every connection and never says a word."""
    ended = threading.Event()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        listener.settimeout(0.1)
        held: list[socket.socket] = []

        def accept() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    held.append(listener.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            ended.set()
            thread.join()
            for one in held:
                one.close()


def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
