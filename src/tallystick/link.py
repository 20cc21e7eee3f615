"""A plain connection to a broker: one request at a time, made on the caller's own thread.

The command line and Spark's processes use it. A service uses `tallystick.Client`, which coalesces and fails over, and
needs an event loop for that. A command that is over in a moment and a worker of Spark's that reads Arrow as it comes
want none of that, so this one stands on `http.client` and on `core`.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from tallystick.answers import ReadyAnswer, as_answer, has_type
from tallystick.core.addresses import BrokerAddress, broker_address
from tallystick.core.backoff import Backoff
from tallystick.core.codings import encoded_answer, unread_coding
from tallystick.core.errors import (
    BrokerUnavailable,
    BrokerUnreachable,
    BrokerUntrusted,
    InvalidRequest,
    TallystickError,
    error_from_code,
)
from tallystick.credentials.credentials import NO_CREDENTIALS, OF_A_PROXY, Credentials, advised
from tallystick.credentials.spoken import OtherProtocol, other_protocol, peek
from tallystick.credentials.tls import failure_in_words, hang_up, is_lasting
from tallystick.limited_http import (
    LEAST_BYTES_PER_SECOND,
    LimitedConnection,
    LimitedResponse,
    RequestLimit,
    StreamLimit,
    TooSlow,
)

TIMEOUT_SECONDS = 15.0
ARROW = "application/vnd.apache.arrow.stream"
SHOWN_BYTES = 60
NO_QUERY: Mapping[str, Any] = MappingProxyType({})
_BACKOFF = Backoff(first_ms=50, cap_ms=2_000)
T = TypeVar("T")


def checked_address(url: str, named: str) -> BrokerAddress:
    """The parts of an address that a broker can have; `named` is what the user calls it."""
    try:
        return broker_address(url)
    except ValueError as reason:
        raise InvalidRequest(f"{named}: {reason}", field="url") from reason


def addresses_of(urls: str, named: str) -> list[str]:
    """The addresses that a user has given with commas between them, each looked at; without a slash at the end."""
    given = [url.strip() for url in urls.split(",") if url.strip()]
    for url in given:
        checked_address(url, named)
    if not given:
        raise InvalidRequest(f"{named}: an address such as http://127.0.0.1:7440 is needed", field="url")
    return [url.rstrip("/") for url in given]


class Link:
    """A connection to the broker at `url`, opened at the first request and again when it was lost.

    With `patience` (seconds) a request is repeated until the time is up, if its error is `retryable`: no answer, a lost
    connection, a broker that is busy, draining or without its store. What only a change of configuration can cure is
    raised at once: a certificate that is not trusted, a wrong name, a port without TLS, 401, 403 and other refusals.
    Only for requests that may be repeated, as all of ours may. `named` is what the user calls the address.
    One thread at a time may ask; any other may `abandon` what that one waits for.

    `timeout` (seconds) limits one request as a whole: connection, TLS, request, head and body of the answer. A request
    with a body has as much time again as its body takes at the least rate (`LEAST_BYTES_PER_SECOND`). After the head of
    an Arrow answer, `timeout` limits each silence and the least rate limits the whole (`StreamLimit`).
    """

    def __init__(
        self,
        url: str,
        timeout: float = TIMEOUT_SECONDS,
        patience: float = 0.0,
        named: str = "--url",
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self._credentials = credentials
        self._named, self._timeout, self._patience = named, timeout, patience
        self._abandoned = threading.Event()
        self._answered = False
        self._connect_to(url)

    def _connect_to(self, url: str) -> None:
        """At the next request."""
        address = checked_address(url, self._named)
        self.url = url
        self._address = address
        self._connection = self._unconnected()

    def _unconnected(self) -> LimitedConnection:
        """With the files of TLS as they are now."""
        tls = self._credentials.tls() if self._address.scheme == "https" else None
        return LimitedConnection(self._address.host, self._address.port, timeout=self._timeout, context=tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def abandon(self) -> None:
        """Nobody wants an answer any more: the request under way ends with an error, and none is made after it."""
        self._abandoned.set()
        under_way = self._connection.sock
        if under_way is not None:
            hang_up(under_way)

    def rest(self, seconds: float) -> bool:
        """Wait before another try; False, and at once, if there is to be none."""
        return not self._abandoned.wait(seconds)

    # --- JSON ------------------------------------------------------------------------------------------------

    def get(self, *path: str, **query: Any) -> Any:
        """The answer of GET /v1/<path>; parameters that are None are left out."""
        return self._ask("GET", path, query)

    def post(self, *path: str, **content: Any) -> Any:
        return self._ask("POST", path, content=content)

    def put(self, *path: str, **content: Any) -> Any:
        return self._ask("PUT", path, content=content)

    def delete(self, *path: str, **query: Any) -> None:
        self._ask("DELETE", path, query)

    def ready(self, store: str = "") -> str:
        """Why the broker, or the owner of this store of its cluster, takes no work; an empty string if it does. Raises
        `BrokerUnavailable` if the broker gets no answer from the owner."""
        place = f"/stores/{store}/readyz" if store else "/readyz"
        response = self._exchange("GET", place, None, {})
        content = self._content(response)
        told = self._decoded(response, content)
        if response.status == 200 and has_type(told, ReadyAnswer):
            return ""
        if response.status == 200 or not isinstance(told, dict):
            raise self._no_broker(response, content)
        if response.status == 400:  # it was not understood: this port speaks TLS
            raise BrokerUnreachable(f"{self.url} cannot be asked: {told.get('detail', response.status)}")
        if store and told.get("code") in (BrokerUnavailable.code, BrokerUnreachable.code):
            raise BrokerUnavailable(str(told.get("detail", "")))
        return str(told.get("reason") or told.get("detail", response.status))

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        query: Mapping[str, Any] = NO_QUERY,
        content: Mapping[str, Any] | None = None,
    ) -> Any:
        body = None if content is None else msgspec.json.encode(content)
        return self._exchange_json(method, path, query, body, "application/json")

    def _exchange_json(
        self, method: str, path: tuple[str, ...], query: Mapping[str, Any], body: bytes | memoryview | None, media: str
    ) -> Any:
        headers = {"Accept": "application/json", "Content-Type": media}
        target = _path(*path) + _query(query)
        return self._patiently(lambda: self._answer(self._exchange(method, target, body, headers), method, path))

    # --- Arrow -----------------------------------------------------------------------------------------------

    def post_arrow(self, *path: str, body: bytes | memoryview, **query: Any) -> Any:
        """Send an Arrow IPC stream; the answer is JSON."""
        return self._exchange_json("POST", path, query, body, ARROW)

    @contextmanager
    def arrow(self, *path: str, **query: Any) -> Iterator[http.client.HTTPResponse]:
        """An Arrow IPC stream to read from, for `pyarrow.ipc.open_stream`. Patience ends with the first byte: whoever
        reads knows how far it came, and asks for the rest."""
        response = self._patiently(lambda: self._opened(path, query))
        try:
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(error) from error
        finally:
            if not response.isclosed():
                self._cut_off(response)  # otherwise the rest of the answer would be taken for the next one

    def get_bytes(self, accept: str, *path: str, **query: Any) -> bytes:
        """The answer as it comes, in a form that the caller decodes."""
        return self._patiently(lambda: self._content(self._opened(path, query, accept)))

    def _opened(self, path: tuple[str, ...], query: Mapping[str, Any], accept: str = ARROW) -> LimitedResponse:
        """The head of an answer that may be large."""
        response = self._exchange("GET", _path(*path) + _query(query), None, {"Accept": accept})
        if response.status >= 400:
            self._answer(response, "GET", path)
        self._require_plain(response)
        if response.status != 200 or response.headers.get_content_type() != accept:
            self._cut_off(response)
            raise self._no_broker(response)
        response.go_on_within(StreamLimit(self._timeout))
        return response

    def _require_plain(self, response: LimitedResponse) -> None:
        """Refuse a body that would have to be decoded."""
        coding = unread_coding(b"content-encoding", response.getheader("Content-Encoding", "").encode("latin-1"))
        if coding:
            self._cut_off(response)  # the rest of the answer is not read
            raise BrokerUnavailable(encoded_answer(self.url, coding))

    # --- both ------------------------------------------------------------------------------------------------

    def _patiently(self, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._patience
        tries = 0
        while True:
            try:
                return ask()
            except TallystickError as error:
                if self._asks_elsewhere(error):
                    continue
                tries += 1
                wait = _BACKOFF.wait_ms(tries) / 1000
                if not error.retryable or time.monotonic() + wait > deadline or not self.rest(wait):
                    raise
                self._before_another_try(error)

    def _asks_elsewhere(self, error: TallystickError) -> bool:
        """Whether the request is made again at once, at another broker. Overridden where others are known."""
        return False

    def _before_another_try(self, error: TallystickError) -> None:
        """Choose the broker of the next try. Overridden where others are known."""

    def _exchange(
        self, method: str, path: str, body: bytes | memoryview | None, headers: dict[str, str]
    ) -> LimitedResponse:
        limit = RequestLimit(self._timeout + len(body or b"") / LEAST_BYTES_PER_SECOND)
        try:
            if self._connection.sock is None:
                self._connection = self._unconnected()
                self._connection.limit = limit
                self._connection.connect()
            self._connection.limit = limit
            # Looked at only now: whoever abandons from here on finds the connection.
            if self._abandoned.is_set():
                raise ConnectionAbortedError("given up")
            self._connection.request(method, self._address.path + path, body, headers | self._authorization())
            response = self._connection.getresponse()
            self._answered = True
            return response
        except (OSError, http.client.HTTPException) as error:
            reached = self._connection.sock is not None
            self._connection.close()
            # Without the frames inside of `http.client`, whose variables have the token in them.
            raise self._unavailable(error, reached) from error.with_traceback(None)

    def _authorization(self) -> dict[str, str]:
        value = self._credentials.authorization(self._address)
        return {"Authorization": value} if value else {}

    def _content(self, response: LimitedResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            self._cut_off(response)
            raise self._unavailable(error) from error

    def _cut_off(self, response: LimitedResponse) -> None:
        """An answer that ends with its connection owns that connection, so both must be closed."""
        response.close()
        self._connection.close()

    def _answer(self, response: LimitedResponse, method: str, path: tuple[str, ...]) -> Any:
        content = self._content(response)
        decoded = None if response.status == 204 else self._decoded(response, content)
        if response.status >= 400:
            raise _problem(response.status, decoded)
        try:
            if decoded is None and response.status != 204:
                raise self._no_broker(response, content)
            return as_answer(method, path, decoded)
        except msgspec.ValidationError:
            raise self._no_broker(response, content) from None

    def _decoded(self, response: LimitedResponse, content: bytes) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            if response.status in OF_A_PROXY:
                raise advised(OF_A_PROXY[response.status](f"{self.url} answered {response.status}")) from None
            self._require_plain(response)
            raise self._no_broker(response, content) from None

    def _no_broker(self, response: LimitedResponse, content: bytes = b"") -> BrokerUnavailable:
        """It may be a proxy or another service. It may also have acted, if a broker of another version answers."""
        media = response.headers.get("Content-Type", "")
        shown = content[:SHOWN_BYTES].decode("ascii", "replace") or media or "nothing"
        return BrokerUnavailable(
            f"{self._named}: {self.url} does not answer like a Tallystick broker (got status {response.status}, "
            f"{shown!r}). Check the address."
        )

    def _other_protocol(self, error: Exception) -> OtherProtocol | None:
        """What the port speaks, if it has never answered over HTTP."""
        if self._answered or not isinstance(error, ConnectionError | http.client.BadStatusLine):
            return None
        first = str(error.args[0]).encode("latin-1", "replace") if error.args else b""
        return other_protocol(first) or peek(self._address.host, self._address.port)

    def _unavailable(self, error: Exception, reached: bool = True) -> BrokerUnavailable:
        """`reached`: somebody is there, and has taken the connection."""
        other = self._other_protocol(error) if reached else None
        if other is not None:
            return BrokerUntrusted(f"{self.url} is not the HTTP port of a broker: {other}; check {self._named}")
        trouble = failure_in_words(error)
        if isinstance(error, TooSlow):
            return BrokerUnavailable(f"the answer of {self.url} broke off ({error})")
        if reached and isinstance(error, TimeoutError):
            return BrokerUnavailable(
                f"the broker at {self.url} has not answered within {self._timeout:g} s; it may have acted; its log, "
                "and `tallystick doctor`, may say what it waits for"
            )
        if trouble.startswith("TLS: "):
            kind = BrokerUntrusted if is_lasting(error) else BrokerUnreachable
            return kind(f"{self.url} cannot be reached ({trouble})")
        return BrokerUnavailable(
            f"no broker answers at {self.url} ({_reason(error)}); "
            f"start one with `tallystick serve`, or name another with {self._named}"
        )


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _query(query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _problem(status: int, decoded: Any) -> TallystickError:
    told = decoded if isinstance(decoded, dict) else {}
    detail = str(told.get("detail") or f"the broker answered with status {status}")
    return advised(error_from_code(str(told.get("code", "error")), detail, told.get("field")))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
