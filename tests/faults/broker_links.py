"""The script's way to a real broker process, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from broker_script import GROUP, TOPIC, Broken

from raw_client import Gone, RawClient
from tallystick.core.errors import StaleLease, TallystickError
from tallystick.core.message import StoredMessage
from tallystick.core.ops import ClientOp, OpResult
from tallystick.core.wire import Delivery

T = TypeVar("T")


class HttpLink:
    def __init__(self, url: str) -> None:
        self.client = RawClient(url, timeout=20)

    def _ask(self, what: Callable[[], T]) -> T:
        try:
            return what()
        except Gone as error:
            raise Broken from error
        except TallystickError as error:
            if error.code in ("storage_failed", "draining"):
                raise Broken from error
            raise

    def do(self, op: ClientOp) -> OpResult:
        try:
            return self._ask(lambda: self.client.do(op))
        except StaleLease:
            return OpResult()  # the repetition of an acknowledgement whose answer was lost

    def receive(self) -> list[Delivery]:
        return self._ask(lambda: self.client.receive("g", TOPIC, max=100, invisible_ms=200))

    def due(self) -> list[str]:
        return [one.gid for one in self._ask(lambda: self.client.poll_checks(GROUP, wait_ms=1_500))]

    def messages(self) -> list[StoredMessage]:
        return self._ask(lambda: self.client.messages(TOPIC))

    def state(self, gid: str) -> str | None:
        view = self._ask(lambda: self.client.transaction(gid))
        return view.state if view else None

    def drain(self) -> list[Delivery]:
        """Everything that is not settled, once the leases of lost answers have ended."""
        time.sleep(0.3)
        found: list[Delivery] = []
        while more := self.client.receive("g", TOPIC, max=1_000, invisible_ms=60_000):
            found += more
        return found
