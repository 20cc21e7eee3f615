"""What the wires of threads and of event loops share: the head of a request with operations, and its answer."""

from __future__ import annotations

import base64

import httptools
from yarl import URL

from tallystick.client.connection.transport import refusal
from tallystick.core.wire import MSGPACK

PATH = "/v1/batch"


def request_head(url: URL) -> bytes:
    """All of a request's head but its last number, the length of the body."""
    return (
        f"POST {url.raw_path} HTTP/1.1\r\nHost: {url.with_user(None).authority}\r\n{_authorization(url)}"
        f"Content-Type: {MSGPACK}\r\nAccept: {MSGPACK}\r\nContent-Length: "
    ).encode()


def _authorization(url: URL) -> str:
    """For a proxy in front of the broker that asks who is there."""
    if not url.user:
        return ""
    credentials = base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
    return f"Authorization: Basic {credentials}\r\n"


class WireAnswer:
    """One answer, as the parser finds it."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._status = 0
        self._retry_after = ""
        self.complete = self.keeps_alive = False

    def take(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as failure:
            raise failure.__context__ or failure from None  # what interrupted us there, and no fault of the broker's
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as failure:
            raise ConnectionError(f"no HTTP answer: {failure!r}") from failure

    def content(self, address: str) -> bytes:
        """The body of a 2xx answer; anything else is raised as the error it stands for."""
        body = b"".join(self._body)
        if self._status < 300:
            return body
        raise refusal(address, self._status, self._retry_after, body)

    # --- the parser's callbacks ------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)

    def on_message_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status >= 200:  # 1xx: the real one follows
            self.complete = True
            self.keeps_alive = self._parser.should_keep_alive()
