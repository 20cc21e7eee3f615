"""The HTTP API by hand, without the client library: one connection, one request at a time, nothing is retried."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tallystick.core.errors import TallystickError, error_from_code
from tallystick.core.message import Chunk, StoredMessage, messages_of
from tallystick.core.ops import ClientOp, OpResult
from tallystick.core.wire import (
    MSGPACK,
    BatchRequest,
    BatchResponse,
    CheckPoll,
    CheckPollResponse,
    CheckRequest,
    Delivery,
    FetchResponse,
    Problem,
    ReceiveRequest,
    ReceiveResponse,
    TopicView,
    TransactionView,
)

IDLE_SECONDS = 60.0  # less than a broker keeps a connection that nobody uses
_decode_chunk = msgspec.msgpack.Decoder(Chunk).decode
Gone = (OSError, http.client.HTTPException)  # no answer: what was asked may have happened, or not


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self) -> Problem:
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.headers, self.body[:300])
        return msgspec.json.decode(self.body, type=Problem)


class RawClient:
    def __init__(
        self, url: str, timeout: float = 30.0, tls: ssl.SSLContext | None = None, source: str | None = None
    ) -> None:
        """`source`: the address of this machine to ask from."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        at = (parts.hostname, parts.port)
        here = None if source is None else (source, 0)
        self._connection = (
            http.client.HTTPConnection(*at, timeout=timeout, source_address=here)
            if tls is None
            else http.client.HTTPSConnection(*at, timeout=timeout, context=tls, source_address=here)
        )
        self._used_at = 0.0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        if time.monotonic() - self._used_at > IDLE_SECONDS:
            self._connection.close()  # the broker is about to, or has
        self._used_at = time.monotonic()
        try:
            self._connection.request(method, path, body, headers or {})
            answer = self._connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        except BaseException:
            self._connection.close()  # the next request makes a new connection
            raise

    def json(self, method: str, path: str, content: Any = None) -> Answer:
        body = None if content is None else json.dumps(content).encode()
        return self.request(method, path, body, {"Content-Type": "application/json"} if body else {})

    def msgpack(self, method: str, path: str, content: Any = None, kind: Any = Any) -> Any:
        body = None if content is None else msgspec.msgpack.encode(content)
        answer = self.request(method, path, body, {"Content-Type": MSGPACK, "Accept": MSGPACK})
        if answer.status >= 400:
            problem = answer.problem()
            raise error_from_code(problem.code, problem.detail, problem.field)
        return msgspec.msgpack.decode(answer.body, type=kind)

    # --- what the library would do -------------------------------------------------------------------------------

    def batch(self, *ops: ClientOp) -> list[OpResult | None]:
        answer: BatchResponse = self.msgpack("POST", "/v1/batch", BatchRequest(list(ops)), BatchResponse)
        return answer.results

    def do(self, op: ClientOp) -> OpResult:
        """One operation; a refusal is raised."""
        (result,) = self.batch(op)
        if result is not None and result.error:
            raise error_from_code(result.error, result.detail, result.field)
        return result or OpResult()

    def receive(self, group: str, topic: str, **rest: Any) -> list[Delivery]:
        asked = ReceiveRequest(topic, **rest)
        answer: ReceiveResponse = self.msgpack("POST", f"/v1/groups/{group}/receive", asked, ReceiveResponse)
        return answer.deliveries

    def poll_checks(self, group: str, member: str = "m", **rest: Any) -> list[CheckRequest]:
        poll = CheckPoll(group, member, **rest)
        answer: CheckPollResponse = self.msgpack("POST", "/v1/checks/poll", poll, CheckPollResponse)
        return answer.checks

    def topics(self) -> list[TopicView]:
        return msgspec.convert(self.msgpack("GET", "/v1/topics")["topics"], list[TopicView])

    def transaction(self, gid: str) -> TransactionView | None:
        try:
            found: TransactionView = self.msgpack("GET", f"/v1/transactions/{gid}", None, TransactionView)
        except TallystickError as error:
            if error.code == "not_found":
                return None
            raise
        return found

    def read(self, topic: str, queue: int, offset: int = 0, **query: int) -> tuple[list[StoredMessage], int, int]:
        """Messages from an offset on, where to go on, and the end of the queue."""
        rest = "".join(f"&{name}={value}" for name, value in query.items())
        path = f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}{rest}"
        piece: FetchResponse = self.msgpack("GET", path, None, FetchResponse)
        chunks = [_decode_chunk(raw) for raw in piece.chunks]
        return [one for chunk in chunks for one in messages_of(chunk, topic, queue, offset)], piece.next, piece.end

    def messages(self, topic: str) -> list[StoredMessage]:
        """Everything visible in a topic."""
        found: list[StoredMessage] = []
        for view in self.topics():
            for queue in range(view.queues) if view.name == topic else ():
                offset, end = view.starts[queue], view.ends[queue]
                while offset < end:
                    messages, offset, end = self.read(topic, queue, offset)
                    found += messages
        return found
