"""What the wires of threads and of event loops share: the head of a request, and its answer or its refusal.

The distinction that matters to a transaction is made on the wires: `BrokerUnreachable` means that no byte of the
request left, any other `BrokerUnavailable` means that the broker may or may not have acted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httptools
import msgspec

from tallystick.core.addresses import BrokerAddress
from tallystick.core.codings import encoded_answer, unread_coding
from tallystick.core.errors import (
    BrokerUnavailable,
    BrokerUnreachable,
    BrokerUntrusted,
    InvalidRequest,
    TallystickError,
    error_from_code,
)
from tallystick.core.wire import MSGPACK, Problem
from tallystick.credentials.credentials import NO_CREDENTIALS, OF_A_PROXY, Credentials, advised
from tallystick.credentials.spoken import OtherProtocol, other_protocol
from tallystick.credentials.tls import failure_in_words, is_lasting
from tallystick.credentials.tokens import SecretToken

if TYPE_CHECKING:
    import ssl

BATCH = "/v1/batch"
CONNECT_SECONDS = 5.0
IDLE_SECONDS = 3.0
"""Shorter than a web server's own patience with idle connections (5 s is common): a request on a connection that is
just being closed at the other end would count as sent, with its answer lost."""

LEAVE_SECONDS = 0.1
"""What a request gets that is under way at a broker which has lost its store. It may be paused, or wait for the next
owner itself; whatever was asked there is asked again where the wire leads now."""

DISTRUST = "distrust"
"""Of a `BrokerUntrusted`: waiting callers get it at once, because the certificate will be the same in a moment.
Operations that insist are retried."""
NOT_SENT = "not_sent"
"""Of a `BrokerUnreachable`: no try of the operation, not only the last one, has reached the broker."""

_problem = msgspec.json.Decoder(Problem)


class RequestHead(bytes):
    """All of a request's head but its last number, the length of the body. There may be a token in it: it is sent, and
    never shown, not among the variables of a traceback either."""

    def __repr__(self) -> str:
        return "<the head of a request>"


def request_head(
    address: BrokerAddress, method: str = "POST", target: str = BATCH, credentials: Credentials = NO_CREDENTIALS
) -> RequestHead:
    """BrokerUnreachable if we have nothing to show just now."""
    try:
        authorization = _authorization(credentials.authorization(address))
    except InvalidRequest as failure:
        raise unready(address, failure) from None
    return RequestHead(
        (
            f"{method} {address.path}{target} HTTP/1.1\r\nHost: {address.authority}\r\n"
            f"{authorization}"
            f"Content-Type: {MSGPACK}\r\nAccept: {MSGPACK}\r\nAccept-Encoding: identity\r\nContent-Length: "
        ).encode()
    )


def _authorization(value: str) -> str:
    return f"Authorization: {value}\r\n" if value else ""


def tls_to(address: BrokerAddress, credentials: Credentials) -> ssl.SSLContext | None:
    """What a connection to https is made with. To be asked for before there is one."""
    try:
        return credentials.tls() if address.scheme == "https" else None
    except InvalidRequest as failure:
        raise unready(address, failure) from None


class BatchHead:
    """The head of requests with operations to one place: written once, and again when the token has changed."""

    def __init__(self, address: BrokerAddress, credentials: Credentials) -> None:
        self._address, self._credentials = address, credentials
        self._written: tuple[SecretToken | None, RequestHead] | None = None

    def current(self) -> RequestHead:
        try:
            token = self._credentials.token()
        except InvalidRequest as failure:
            raise unready(self._address, failure) from None
        written = self._written
        if written is None or written[0] is not token:
            written = self._written = token, request_head(self._address, credentials=self._credentials)
        return written[1]


class WireAnswer:
    """One answer, as the parser finds it."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._status = 0
        self._retry_after = self._coding = ""
        self.complete = self.keeps_alive = False

    def take(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as failure:
            raise failure.__context__ or failure from None  # what interrupted us there, and no fault of the broker's
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as failure:
            other = None if self._status or self._body else other_protocol(data)
            raise other or ConnectionError(f"no HTTP answer: {failure!r}") from failure

    def content(self, address: str) -> bytes:
        """The body of a 2xx answer; anything else is raised as the error it stands for."""
        body = b"".join(self._body)
        if self._status < 300:
            if self._coding and body:
                raise on_the_way(address, BrokerUnavailable(encoded_answer(address, self._coding)))
            return body
        raise _refusal(address, self._status, self._retry_after, body)

    # --- the parser's callbacks ------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")
        else:
            self._coding = unread_coding(name, value) or self._coding

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)

    def on_message_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status < 200:  # the real one follows
            self._coding = ""
        else:
            self.complete = True
            self.keeps_alive = self._parser.should_keep_alive()


def on_the_way(address: str, error: TallystickError) -> TallystickError:
    """The error, with where it was met: a wire may be pointed to another address meanwhile."""
    error.extra["way"] = address
    return error


def unreachable(address: str, failure: BaseException) -> TallystickError:
    """No connection, and so no byte of the request has left."""
    reason = failure_in_words(failure) or "no answer in time"
    hint = "" if reason.startswith("TLS: ") else "; is the broker running there?"
    lasting = is_lasting(failure)
    kind = BrokerUntrusted if lasting else BrokerUnreachable
    error = on_the_way(address, kind(f"{address} cannot be reached ({reason}){hint}"))
    error.extra[DISTRUST] = lasting
    return error


def distrusted(error: BaseException) -> bool:
    """Whether TLS failed for a reason that a retry does not change."""
    return isinstance(error, BrokerUntrusted) and bool(error.extra.get(DISTRUST))


def never_sent_to(address: str, error: TallystickError) -> TallystickError:
    error.extra[NOT_SENT] = True
    return on_the_way(address, error)


def never_sent(error: BaseException) -> bool:
    """Whether the broker knows nothing of the operation for certain, so that there is nothing to take back."""
    return isinstance(error, BrokerUnreachable) and bool(error.extra.get(NOT_SENT) or error.extra.get(DISTRUST))


def passes_elsewhere(error: BaseException) -> bool:
    """Whether another broker, or this one later, may take what this one did not."""
    return isinstance(error, TallystickError) and (error.retryable or isinstance(error, BrokerUntrusted))


def unready(address: BrokerAddress, failure: InvalidRequest) -> TallystickError:
    """What is wrong is our own: files that are being exchanged, a token that is gone. It may be right before long, and
    no broker has refused anything."""
    return on_the_way(address.text, BrokerUnreachable(f"{address.text} is not asked ({failure.detail})"))


def broken(address: str, failure: BaseException) -> TallystickError:
    """The connection was lost after the request, or some of it, had left."""
    if isinstance(failure, OtherProtocol):
        error = on_the_way(address, BrokerUntrusted(f"{address} is not the HTTP port of a broker: {failure}"))
        error.extra[DISTRUST] = True
        return error
    return on_the_way(address, BrokerUnavailable(f"the connection to {address} broke: {failure_in_words(failure)}"))


def _refusal(address: str, status: int, retry_after: str, content: bytes) -> TallystickError:
    """The error of an answer that is not 2xx, also from a proxy that does not speak problem+json."""
    try:
        problem = _problem.decode(content)
    except msgspec.MsgspecError:
        text = content[:200].decode("utf-8", "replace")
        kind = OF_A_PROXY.get(status, BrokerUnavailable)
        return on_the_way(address, advised(kind(f"{address} answered {status} without a reason: {text!r}")))
    error = on_the_way(address, advised(error_from_code(problem.code, problem.detail, problem.field)))
    if retry_after.isdigit():
        error.extra["retry_after"] = float(retry_after)
    return error
