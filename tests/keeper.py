"""A doorkeeper before a real broker: it lets in whoever shows its token, and refuses as a broker with access control
would. `with doorkeeper(broker.url, token="...") as keeper: keeper.url`."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

Judge = Callable[[str, bytes], int]
"""By the path and the body of a request: 0 lets it pass, 401 and 403 refuse it."""

_CODES = {400: "invalid_request", 404: "not_found", 401: "unauthenticated", 403: "forbidden", 500: "error"}
_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "authorization"}


class Keeper:
    """`judge` may refuse more than those without the token. What came is in `seen`: path, and header."""

    def __init__(self, broker: str, token: str, scheme: str) -> None:
        self.token = token
        self.judge: Judge = lambda path, body: 0
        self.bare = False  # refuses as a proxy does that knows nothing of problem+json
        self.seen: list[tuple[str, str]] = []
        self.refused: list[str] = []
        self.broker = urlsplit(broker)
        self.scheme, self.port = scheme, 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def verdict(self, path: str, authorization: str, body: bytes) -> int:
        self.seen.append((path, authorization))
        known = not self.token or authorization == f"Bearer {self.token}"
        status = 0 if path == "/readyz" else self.judge(path, body) if known else 401
        if status:
            self.refused.append(path)
        return status


@contextlib.contextmanager
def doorkeeper(broker: str = "http://nowhere", token: str = "", tls: ssl.SSLContext | None = None) -> Iterator[Keeper]:
    keeper = Keeper(broker, token, "https" if tls is not None else "http")
    server = _Server(("127.0.0.1", 0), _handler(keeper))
    server.tls = tls
    keeper.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield keeper
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The handshake is the thread's own: one that fails, or takes long, is nobody else's business."""
        if self.tls is not None:
            try:
                request = self.tls.wrap_socket(request, server_side=True)
            except OSError:
                request.close()
                return
        super().process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news."""


def _handler(keeper: Keeper) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status = keeper.verdict(self.path, self.headers.get("Authorization", ""), body)
            if status:
                problem = {"code": _CODES[status], "detail": "refused", "status": status, "title": "", "type": ""}
                self._say(status, {}, b"no" if keeper.bare else json.dumps(problem).encode())
            else:
                self._hand_on(body)

        do_GET = do_POST = do_PUT = do_DELETE = _any

        def _hand_on(self, body: bytes) -> None:
            onward = http.client.HTTPConnection(keeper.broker.hostname or "", keeper.broker.port)
            with contextlib.closing(onward):
                passed = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                onward.request(self.command, self.path, body, passed)
                answer = onward.getresponse()
                content = answer.read()
                self._say(answer.status, dict(answer.headers), content)

        def _say(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _HOP | {"content-length"}:
                    self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            return

    return Handler
