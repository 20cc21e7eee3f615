"""A business service over gRPC, for the branches and the check-backs of the tests.

Takes any method and any bytes, keeps what it was called with, and answers as it was told: OK unless the test has put
other answers in line for the method. `with busi_service() as busi: busi.url("TransIn")`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc

SECONDS = 20.0
SERVICE = "busi.Busi"


class Called(NamedTuple):
    method: str
    body: bytes
    metadata: dict[str, str]
    at: float

    @property
    def gid(self) -> str:
        return self.metadata["dtm-gid"]

    @property
    def branch(self) -> str:
        return self.metadata["dtm-branch_id"]


class Answer(NamedTuple):
    """A status instead of OK; `after` holds the answer back until the test sets it."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    text: str = ""
    after: threading.Event | None = None


OK = Answer()
FAILURE = Answer(grpc.StatusCode.ABORTED, "FAILURE: there is no such account")
ONGOING = Answer(grpc.StatusCode.FAILED_PRECONDITION, "ONGOING")
OLD_ONGOING = Answer(grpc.StatusCode.ABORTED, "ONGOING")


class Busi(grpc.GenericRpcHandler):
    """The service. Its port stays the same over `stop()` and `start()`."""

    def __init__(self) -> None:
        self._answers: dict[str, deque[Answer]] = defaultdict(deque)
        self._calls: list[Called] = []
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self.port = 0

    # --- what the tests ask and tell ---------------------------------------------------------------------------

    def url(self, method: str) -> str:
        """A method as dtm's users write it: without a scheme."""
        return f"127.0.0.1:{self.port}/{SERVICE}/{method}"

    def answers(self, method: str, *answers: Answer) -> None:
        """The next answers of a method, one a call."""
        with self._changed:
            self._answers[method].extend(answers)

    def calls(self, gid: str, method: str | None = None) -> list[Called]:
        with self._changed:
            return [one for one in self._calls if one.gid == gid and method in (None, one.method)]

    def wait_for(self, gid: str, count: int, method: str | None = None, seconds: float = SECONDS) -> list[Called]:
        """Wait until a gid's calls are at least so many."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(found := [one for one in self._calls if one.gid == gid and method in (None, one.method)]) < count:
                left = deadline - time.monotonic()
                assert left > 0, f"{len(found)} of {count} calls of {gid} ({method}) within {seconds} s: {found}"
                self._changed.wait(left)
        return found

    def start(self) -> None:
        # Without SO_REUSEPORT: another test's service must never get what was meant for this one.
        server = grpc.server(ThreadPoolExecutor(16), handlers=[self], options=[("grpc.so_reuseport", 0)])
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        server.start()
        self._server = server

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait(SECONDS)
            self._server = None

    # --- gRPC --------------------------------------------------------------------------------------------------

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method.rpartition("/")[2]
        metadata = {str(name): str(value) for name, value in handler_call_details.invocation_metadata or ()}

        def answer(body: bytes, context: grpc.ServicerContext) -> bytes:
            with self._changed:
                self._calls.append(Called(method, body, metadata, time.monotonic()))
                waiting = self._answers[method]
                told = waiting.popleft() if waiting else OK
                self._changed.notify_all()
            if told.after is not None:
                told.after.wait(SECONDS)
            if told.code is not grpc.StatusCode.OK:
                context.abort(told.code, told.text)
            return b"an answer that nobody reads"

        return grpc.unary_unary_rpc_method_handler(answer)


@contextlib.contextmanager
def busi_service() -> Iterator[Busi]:
    busi = Busi()
    busi.start()
    try:
        yield busi
    finally:
        busi.stop()
