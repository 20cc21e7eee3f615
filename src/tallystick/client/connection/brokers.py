"""Several broker addresses: which one a new transaction goes to, and which one an old one belongs to."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from tallystick.client.base.settings import Settings
from tallystick.client.connection.coalescer import Coalescer, CoalescerLimits
from tallystick.client.connection.combiner import Combiner
from tallystick.client.connection.loop_wire import LoopWire
from tallystick.core.calls import check_branches
from tallystick.core.errors import BrokerUnavailable, TallystickError
from tallystick.core.ids import new_gid, store_of_gid
from tallystick.core.limits import Limits
from tallystick.core.ops import Prepare, Send
from tallystick.core.placing import weight
from tallystick.core.wire import BrokerInfo

log = logging.getLogger("tallystick.client")

T = TypeVar("T", Prepare, Send)

PROBE_SECONDS = 1.0
HEARD_LOOK_SECONDS = 0.001

_info = msgspec.msgpack.Decoder(BrokerInfo)


class BrokerPeer:
    """One address: its connection, what it said of itself, and whether it answered the last time."""

    def __init__(self, address: str, settings: Settings) -> None:
        self.address = address
        self.wire = LoopWire(address)
        self.healthy = True
        self.store: str | None = None
        self.limits: Limits | None = None
        self._dedup_retention_ms: int | None = None
        self._timeout = settings.timeout
        self._probe: asyncio.Task[None] | None = None
        self.ops = self._coalescer(settings.max_in_flight)
        self.threads = Combiner(self.ops, settings.timeout)
        # Level 0 messages keep their order because only one request of them is ever in flight, and none is retried.
        self.unconfirmed = self._coalescer(1)

    def _coalescer(self, in_flight: int) -> Coalescer:
        return Coalescer(
            self.address,
            self.wire.post,
            limits=CoalescerLimits(in_flight=in_flight),
            request_timeout=self._timeout,
            on_health=self.mark,
        )

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
        try:
            content = await self.wire.request("GET", "/v1/info", timeout=timeout or self._timeout)
            info = _info.decode(content)
        except msgspec.MsgspecError as failure:
            raise BrokerUnavailable(f"{self.address} is not a Tallystick broker: {failure}") from failure
        except BrokerUnavailable:
            self.mark(False)
            raise
        self.answered_by(info.store)
        self.limits = msgspec.convert(info.limits, Limits)
        self._dedup_retention_ms = info.dedup_retention_ms
        self.mark(True)
        return info

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

    async def close(self, timeout: float) -> int:
        if self._probe is not None:
            self._probe.cancel()
        await self.threads.close(timeout)
        return sum(await asyncio.gather(self.ops.close(timeout), self.unconfirmed.close(timeout)))


class Brokers:
    """All addresses of a client, on one event loop."""

    def __init__(self, settings: Settings, member: str) -> None:
        self.timeout = settings.timeout
        self._settings = settings
        self._by_address = {address: BrokerPeer(address, settings) for address in settings.addresses}
        # Each member has its own order of preference, so a fleet spreads over the brokers, and each process
        # stays with one while that is healthy: its batches are larger and the order of its keys is kept.
        self._order = sorted(self._by_address.values(), key=lambda broker: weight(broker.address, member), reverse=True)
        # With one address there is nothing to choose, and no time to lose on choosing.
        self.only = self._order[0] if len(self._order) == 1 else None

    def __iter__(self) -> Iterator[BrokerPeer]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def for_new(self) -> list[BrokerPeer]:
        """Where a new transaction may go, best first."""
        return sorted(self._order, key=lambda broker: not broker.healthy)

    def at(self, address: str) -> BrokerPeer:
        """The broker at an address; one that a crashed process wrote down may be missing in our own list."""
        broker = self._by_address.get(address)
        if broker is None:
            broker = self._by_address[address] = BrokerPeer(address, self._settings)
        return broker

    async def of_row(self, gid: str, address: str) -> BrokerPeer:
        """The broker of an outbox row: by its store if one of ours has it (addresses change), else by its address."""
        store = store_of_gid(gid.partition(":")[0])
        if store and self._holding(store) is None:
            await self._ask_stores()
        return (self._holding(store) if store else None) or self.at(address)

    def new_gid(self) -> str:
        """A gid for the broker that a new transaction would go to now."""
        return new_gid(self.for_new()[0].store or "")

    async def of_gid(self, gid: str) -> BrokerPeer:
        """The one broker that a gid belongs to. A retry of anything uncertain must never reach another one."""
        if self.only is not None:
            return self.only
        store = store_of_gid(gid)
        if store:
            broker = self._holding(store) or await self._find(store)
            if broker is not None:
                return broker
        return max(self._order, key=lambda broker: weight(broker.address, gid))

    def _holding(self, store: str) -> BrokerPeer | None:
        # Several brokers may serve one shared store; any of them will do, a healthy one sooner.
        holding = [broker for broker in self.for_new() if broker.store == store]
        return holding[0] if holding else None

    async def _find(self, store: str) -> BrokerPeer | None:
        silent = await self._ask_stores()
        found = self._holding(store)
        if found is None and len(silent) == 1:
            return silent[0]  # every other broker said that the store is not its own
        if found is None and silent:
            raise BrokerUnavailable(
                f"store {store} is on none of the brokers that answer; it may be on one of "
                f"{', '.join(broker.address for broker in silent)}, which do not"
            )
        return found

    async def _ask_stores(self) -> list[BrokerPeer]:
        """Have every broker name its store; those that do not answer."""
        unknown = [broker for broker in self._order if broker.store is None]
        await asyncio.gather(*(broker.known_store() for broker in unknown), return_exceptions=True)
        return [broker for broker in unknown if broker.store is None]

    async def close(self, timeout: float) -> int:
        """Flush what waits; how much of it was given up."""
        given_up = await asyncio.gather(*(broker.close(timeout) for broker in self._by_address.values()))
        return sum(given_up)

    def let_go(self) -> None:
        for broker in self._by_address.values():
            broker.wire.close()
