"""What the wires of threads and of event loops share: the head of a request, and its answer or its refusal.

The distinction that matters to a transaction is made on the wires: `BrokerUnreachable` means that no byte of the
request left, any other `BrokerUnavailable` means that the broker may or may not have acted.
"""

from __future__ import annotations

import base64

import httptools
import msgspec

from tallystick.core.addresses import BrokerAddress
from tallystick.core.errors import BrokerUnavailable, TallystickError, error_from_code
from tallystick.core.wire import MSGPACK, Problem

BATCH = "/v1/batch"
CONNECT_SECONDS = 5.0
IDLE_SECONDS = 3.0
"""Shorter than a web server's own patience with idle connections (5 s is common): a request on a connection that is
just being closed at the other end would count as sent, with its answer lost."""

LEAVE_SECONDS = 0.1
"""What a request gets that is under way at a broker which has lost its store. It may be paused, or wait for the next
owner itself; whatever was asked there is asked again where the wire leads now."""

_problem = msgspec.json.Decoder(Problem)


def request_head(address: BrokerAddress, method: str = "POST", target: str = BATCH) -> bytes:
    """All of a request's head but its last number, the length of the body."""
    return (
        f"{method} {address.path}{target} HTTP/1.1\r\nHost: {address.authority}\r\n{_authorization(address)}"
        f"Content-Type: {MSGPACK}\r\nAccept: {MSGPACK}\r\nContent-Length: "
    ).encode()


def _authorization(address: BrokerAddress) -> str:
    if address.login is None:
        return ""
    credentials = base64.b64encode(":".join(address.login).encode()).decode()
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
        raise _refusal(address, self._status, self._retry_after, body)

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


def on_the_way(address: str, error: TallystickError) -> TallystickError:
    """The error, with where it was met: a wire may be pointed to another address meanwhile."""
    error.extra["way"] = address
    return error


def _refusal(address: str, status: int, retry_after: str, content: bytes) -> TallystickError:
    """The error of an answer that is not 2xx, also from a proxy that does not speak problem+json."""
    try:
        problem = _problem.decode(content)
    except msgspec.MsgspecError:
        text = content[:200].decode("utf-8", "replace")
        return on_the_way(address, BrokerUnavailable(f"{address} answered {status} without a reason: {text!r}"))
    error = on_the_way(address, error_from_code(problem.code, problem.detail, problem.field))
    if retry_after.isdigit():
        error.extra["retry_after"] = float(retry_after)
    return error
