"""One broker, or one store of a cluster, as a client sees it: its connections, what it said of itself, its health."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from typing import TypeVar

import msgspec

from tallystick.client.base.deadlines import Deadline
from tallystick.client.base.settings import Settings
from tallystick.client.base.stats import Stats
from tallystick.client.connection.circuit import Circuit
from tallystick.client.connection.coalescer import Coalescer, CoalescerLimits
from tallystick.client.connection.combiner import Combiner
from tallystick.client.connection.loop_wire import LoopWire
from tallystick.client.connection.waiting import UNCONFIRMED, GivenUp
from tallystick.core.calls import check_branches
from tallystick.core.errors import BrokerUnavailable, TallystickError
from tallystick.core.limits import Limits
from tallystick.core.ops import Position, Prepare, Send
from tallystick.core.wire import BrokerInfo

log = logging.getLogger("tallystick.client")

T = TypeVar("T", Prepare, Send)

PROBE_SECONDS = 1.0
HEARD_LOOK_SECONDS = 0.001

_info = msgspec.msgpack.Decoder(BrokerInfo)


class BrokerPeer:
    """One address: its connection, what it said of itself, and whether it answered the last time."""

    def __init__(self, address: str, settings: Settings, stats: Stats, way: str = "") -> None:
        self.address = address
        self.circuit = Circuit(address, settings.timeout, stats, may_another_answer=self.may_another_answer)
        self.circuit.on_open, self.circuit.on_change = self._fail_waiting, self._hurry
        self.wire = LoopWire(way or address, settings.credentials)
        self.healthy = True
        self.store: str | None = None
        self.limits: Limits | None = None
        self._dedup_retention_ms: int | None = None
        self._timeout = settings.timeout
        self._probe: asyncio.Task[None] | None = None
        self.ops = self._coalescer(settings.max_in_flight)
        self.threads = Combiner(self.ops, settings.timeout, way, settings.credentials)
        # Level 0 messages keep their order because only one request of them is ever in flight, and none is retried.
        self.unconfirmed = self._coalescer(1)

    def _coalescer(self, in_flight: int) -> Coalescer:
        return Coalescer(
            self.address,
            self.wire.post,
            limits=CoalescerLimits(in_flight=in_flight),
            request_timeout=self._timeout,
            circuit=self.circuit,
            on_health=self.mark,
            on_failure=self.failed,
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        query: Mapping[str, str | int] | None = None,
        timeout: float,
    ) -> bytes:
        """Ask it something that is no operation; the body of a 2xx answer."""
        return await self.wire.request(method, path, body=body, query=query, timeout=timeout)

    def for_a_call(self) -> BrokerPeer:
        """This peer, for a question of the program; raises at once while the broker hangs.

        Background work, such as the polls of consumers, asks without this.
        """
        if self.circuit.refuses_questions():
            raise self.circuit.refusal()
        return self

    def failed(self, error: TallystickError) -> None:
        """A request has failed, and not by its own fault."""
        self.circuit.failed(error)

    def may_another_answer(self) -> bool:
        """Whether what this broker does not answer may be answered by another one, under the same address."""
        return False

    def _fail_waiting(self) -> None:
        for waiting in (self.ops, self.unconfirmed, self.threads):
            waiting.fail_waiting()

    def _hurry(self) -> None:
        self.ops.hurry()
        self.unconfirmed.hurry()

    def position(self, at: Position) -> Position:
        """Where a message is, as the client's own questions name queues."""
        return at

    @property
    def introduced(self) -> bool:
        """Whether it has said what one should know before a transaction begins there."""
        return self.store is not None

    async def hear_first(self, timeout: float) -> None:
        """Have it hear what this process has told it so far: whoever asks what became of a block sees its commit."""
        told = [*self.threads.under_way(), *self.ops.under_way()]
        self.threads.flush()
        deadline = time.monotonic() + timeout
        while not all(op.receiver.done() for op in told) and time.monotonic() < deadline:  # noqa: ASYNC110 - no event
            await asyncio.sleep(HEARD_LOOK_SECONDS)

    def mark(self, healthy: bool) -> None:
        if healthy == self.healthy:
            return
        self.healthy = healthy
        log.info("broker %s is %s", self.address, "back" if healthy else "not available")
        if not healthy and self._probe is None:
            self._probe = asyncio.get_running_loop().create_task(self._probe_until_back())

    async def _probe_until_back(self) -> None:
        # Also learns the store again: another data directory may serve the address by now.
        try:
            while not self.healthy:
                await asyncio.sleep(PROBE_SECONDS)
                try:
                    await self.info(PROBE_SECONDS * 2)
                except TallystickError as error:
                    log.debug("broker %s: %s", self.address, error)
        finally:
            self._probe = None

    async def info(self, timeout: float | None = None) -> BrokerInfo:
        """What the broker says of itself, asked now."""
        began = time.monotonic()
        seconds = self._timeout if timeout is None else timeout
        try:
            info = _info.decode(await self._within(seconds, self.request("GET", "/v1/info", timeout=seconds)))
        except msgspec.MsgspecError as failure:
            raise BrokerUnavailable(f"{self.address} is not a Tallystick broker: {failure}") from failure
        except BrokerUnavailable as error:
            error.extra["began"] = began
            self.mark(False)
            self.failed(error)
            raise
        self.answered_by(info.store)
        self.limits = msgspec.convert(info.limits, Limits)
        self._dedup_retention_ms = info.dedup_retention_ms
        self.mark(True)
        self.circuit.probe_answered()
        return info

    async def _within(self, seconds: float, asked: Awaitable[bytes]) -> bytes:
        """The answer, wherever it was looked for, in the time for all of that together."""
        try:
            async with asyncio.timeout(seconds):
                return await asked
        except TimeoutError:
            raise BrokerUnavailable(f"{self.address} did not answer within {seconds:.1f} s") from None

    def answered_by(self, store: str) -> str:
        """The store that an answer came from; it is not the one we knew if the data directory was replaced."""
        if store != self.store:
            if self.store is not None:
                log.warning("broker %s serves store %s now, no longer %s", self.address, store, self.store)
            self.store = store
        return store

    async def known_store(self, timeout: float | None = None) -> str:
        """The name of the broker's store, asked for only once."""
        return self.store or (await self.info(timeout)).store

    async def dedup_retention_ms(self) -> int:
        """How long the broker remembers gids, as it last said."""
        if self._dedup_retention_ms is None:
            return (await self.info()).dedup_retention_ms
        return self._dedup_retention_ms

    def check(self, op: T) -> T:
        """Refuse here what no broker takes, and what this one said it would refuse."""
        if len(op.calls) > 1:
            check_branches(op.calls)
        if self.limits is not None:
            self.limits.check_messages(op.messages, "messages")
            if op.calls:
                self.limits.check_calls(op.calls, "calls")
        return op

    async def close(self, timeout: float) -> GivenUp:
        if self._probe is not None:
            self._probe.cancel()
        deadline = Deadline(timeout)
        await self.threads.close(deadline.left())
        left = deadline.left()
        given_up, unconfirmed = await asyncio.gather(self.ops.close(left), self.unconfirmed.close(left))
        return given_up + GivenUp({UNCONFIRMED: unconfirmed.total()})
