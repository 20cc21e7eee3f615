"""The broker: what every protocol speaks to. One store, one writer, and the things that run beside it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from tallystick.broker.alerts import Alerts
from tallystick.broker.calls.deliverer import Calls, CallSettings
from tallystick.broker.checkback.databases import BarrierDatabases
from tallystick.broker.checkback.scheduler import TICK_SECONDS, CheckScheduler
from tallystick.broker.config import Config
from tallystick.broker.metrics import MAX_LAG_SERIES, Metrics, StoreCollector
from tallystick.broker.outbound.allow_list import AllowedUrls
from tallystick.broker.outbound.headers import check_headers
from tallystick.broker.outbound.outbound import Outbound
from tallystick.broker.sweeps import start_sweeps
from tallystick.broker.waiters import ANY, Waiters
from tallystick.broker.writer import SpaceGuard, Writer
from tallystick.core.calls import TOPIC_SCHEME, OutgoingCall
from tallystick.core.clock import Clock, SystemClock
from tallystick.core.errors import Draining, InvalidRequest, NotAllowed, TallystickError, error_from_code
from tallystick.core.ops import Ack, AnswerChecks, ClientOp, Nack, OpResult, Prepare, PreparePart, Send
from tallystick.core.wire import CheckPoll, CheckRequest, Delivery, GroupView, ReceiveRequest, TopicView
from tallystick.store.memory import open_memory
from tallystick.store.protocol import (
    Hurry,
    HurryAll,
    Receive,
    Received,
    ResetGroup,
    Result,
    Resume,
    Slice,
    Store,
    StoreOp,
    Subscribe,
    TablePage,
    TableQuery,
)
from tallystick.store.rocksdb import open_rocksdb

log = logging.getLogger("tallystick.broker")

T = TypeVar("T")
COUNT_EVERY_MS = 1_000


def open_store(config: Config) -> Store:
    settings = config.store_settings()
    if config.store == "memory":
        return open_memory(settings)
    return open_rocksdb(Path(config.data_dir), settings)


class Broker:
    """Made inside a running event loop; `close()` finishes what waits and lets go of the store."""

    def __init__(self, config: Config, store: Store | None = None, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.limits = config.limits()
        self.metrics = Metrics()
        self.allowed = AllowedUrls(config.allowed_urls)
        if config.alert_url:
            self.allowed.check(config.alert_url, "alert_url")
        self._databases = BarrierDatabases(config.databases, config.barrier_table)
        self.store = store or open_store(config)
        self._collector = StoreCollector(self.store)
        self.metrics.registry.register(self._collector)
        self.waiters = Waiters(config.max_long_polls)
        space = SpaceGuard(config.data_dir if config.store == "rocksdb" else None, config.min_free_bytes)
        self.writer = Writer(
            self.store, self.clock, space, config.max_waiting_bytes, self._durable, self.metrics.commit_seconds
        )
        self._outbound = Outbound(self.allowed)
        self._alerts = Alerts(config.alert_url, self._outbound, self.metrics)
        self.checkback = CheckScheduler(
            self.store,
            self.writer,
            self.clock,
            self._outbound,
            self._databases,
            self.metrics,
            config.check_timeout,
            config.checks_per_target,
            config.max_long_polls,
        )
        self.calls = Calls(self.store, self.writer, self.clock, self._outbound, self.metrics, _call_settings(config))
        self._tasks = [
            asyncio.create_task(self.calls.run(), name="calls"),
            asyncio.create_task(self.checkback.run(), name="check-back"),
            asyncio.create_task(self._alerts.run(), name="alerts"),
            *start_sweeps(self.writer, self.clock),
        ]
        for task in self._tasks:
            task.add_done_callback(_report_end)
        self.draining = False
        self._ordered_receives = 0
        self._counted_at = -COUNT_EVERY_MS

    def _durable(self) -> None:
        """After every group commit: wake those who wait for what it made visible, tell what happened."""
        appended = self.store.drain_appended()
        if appended:
            self.waiters.appended({topic for topic, _ in appended})
        called = self.store.drain_called()
        if called:
            self.calls.called(called)
        for event in self.store.drain_events():
            self._alerts.tell(event)

    # --- operations --------------------------------------------------------------------------------------------

    async def batch(self, ops: Sequence[ClientOp], weight: int) -> list[OpResult | None]:
        """Carry out what a client sent, as part of one group commit. Raises before anything is stored."""
        soonest = self._check(ops)
        results = await self.writer.submit(ops, weight)
        if soonest is not None:
            self.checkback.prepared(soonest)
        for op in ops:
            if type(op) is AnswerChecks:
                self.checkback.answered(op)
            elif type(op) is Nack or (type(op) is Ack and self._ordered_receives):
                self._given_back(op.receipts)
        return results  # type: ignore[return-value]  # client operations answer with OpResult or None only

    def _given_back(self, receipts: list[str]) -> None:
        """A message is visible again sooner than its lease said, or the next one of its key is free: those who
        wait look again."""
        self.waiters.appended({receipt.partition("/")[0] for receipt in receipts})

    def _check(self, ops: Sequence[ClientOp]) -> int | None:
        """Refuse what breaks a limit; tell the shortest time to a first check among what is prepared."""
        soonest: int | None = None
        for index, op in enumerate(ops):
            kind = type(op)
            if kind is Prepare:
                self._check_prepare(op, index)  # type: ignore[arg-type]
                after = op.check.after_ms  # type: ignore[union-attr]
                after = self.config.check_after if after is None else after
                soonest = after if soonest is None else min(soonest, after)
            elif kind is Send:
                self.limits.check_messages(op.messages, f"ops[{index}].messages")  # type: ignore[union-attr]
                self._check_calls(op.calls, f"ops[{index}].calls")  # type: ignore[union-attr]
            elif kind is PreparePart:
                most = self.limits.part_messages
                self.limits.check_messages(op.messages, f"ops[{index}].messages", most)  # type: ignore[union-attr]
            if self.draining and kind in (Prepare, PreparePart, Send):
                raise Draining()
        return soonest

    def _check_prepare(self, op: Prepare, index: int) -> None:
        self.limits.check_messages(op.messages, f"ops[{index}].messages")
        self._check_calls(op.calls, f"ops[{index}].calls")
        check = op.check
        if check.via == "group":
            return
        if check.via == "none":
            self._check_unchecked(f"ops[{index}].check.via")
            return
        if not check.target:
            at = f"ops[{index}].check.target"
            raise InvalidRequest(f"{at}: a check-back by {check.via} needs its {check.via} here", field=at)
        if check.via == "url":
            check_headers(check.headers, f"ops[{index}].check.headers")
            self.allowed.check(check.target, f"ops[{index}].check.target")
        else:
            self._databases.check(check.target, f"ops[{index}].check.target")

    def _check_unchecked(self, at: str) -> None:
        if not self.config.allow_unchecked:
            raise NotAllowed(
                f"{at}: a transaction that nobody can be asked about would be committed blindly; name a check-back, "
                "or let the operator set allow_unchecked",
                field=at,
            )

    def _check_calls(self, calls: list[OutgoingCall], at: str) -> None:
        if not calls:
            return
        self.limits.check_calls(calls, at)
        for index, call in enumerate(calls):
            check_headers(call.headers, f"{at}[{index}].headers")
            if not call.url.startswith(TOPIC_SCHEME):
                self.allowed.check(call.url, f"{at}[{index}].url")

    async def one(self, op: StoreOp) -> Result:
        """Carry out a single operation; a refusal is raised."""
        (result,) = await self.writer.submit([op])
        if isinstance(result, OpResult) and result.error:
            raise error_from_code(result.error, result.detail, result.field)
        if isinstance(op, Resume | Hurry | HurryAll):
            self.checkback.resumed()
        return result

    async def subscribe(self, op: Subscribe) -> None:
        """Add a URL to a call topic, if this broker may call it."""
        if op.url:
            self.allowed.check(op.url, "url")
        await self.one(op)

    async def reset_group(self, op: ResetGroup) -> GroupView:
        """Move a consumer group; tells where it is then. Those who wait for messages look again."""
        await self.one(op)
        view = await self.look(lambda store: store.stored_offsets(op.group, op.topic))
        self.waiters.appended({op.topic})
        return view

    async def look(self, see: Callable[[Store], T]) -> T:
        return await self.writer.look(see)

    # --- long polls --------------------------------------------------------------------------------------------

    async def receive(self, group: str, request: ReceiveRequest) -> list[Delivery]:
        op = Receive(
            group,
            request.topic,
            request.max,
            request.invisible_ms,
            request.ordered,
            request.start,
            request.tags,
        )
        deadline = asyncio.get_running_loop().time() + request.wait_ms / 1000
        # Counted before the first look: an ack after it must not be missed.
        self._ordered_receives += request.ordered
        try:
            return await self._receive(op, deadline)
        finally:
            self._ordered_receives -= request.ordered

    async def _receive(self, op: Receive, deadline: float) -> list[Delivery]:
        self._refuse_while_draining()
        while True:
            seen = self.waiters.version(op.topic)
            received = await self.one(op)
            left = deadline - asyncio.get_running_loop().time()
            if not isinstance(received, Received):
                raise TypeError(f"the store answered a receive with {received!r}")
            if received.deliveries or left <= 0 or self.waiters.closed:
                return received.deliveries
            if received.next_visible is not None:
                left = min(left, max(0.005, (received.next_visible - self.clock.now_ms()) / 1000))
            await self.waiters.wait((op.topic,), seen, left)
            if self.draining:
                return []  # sent home: nothing more is lent

    async def fetch(self, topic: str, queue: int, offset: int, most: int, max_bytes: int, wait_ms: int) -> Slice:
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            seen = self.waiters.version(topic)
            piece = self.store.read(topic, queue, offset, most, max_bytes)
            left = deadline - asyncio.get_running_loop().time()
            if piece.chunks or left <= 0 or self.waiters.closed:
                return piece
            await self.waiters.wait((topic,), seen, left)

    async def ends(
        self, names: Sequence[str] | None, position: int | None, wait_ms: int
    ) -> tuple[list[TopicView], int]:
        """Topics and a number that changes with their ends; waits while it is still `position`."""
        watched = names or (ANY,)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            seen = self.waiters.version(*watched)
            views = self.store.topics() if names is None else _present(self.store.topic(name) for name in names)
            now_at = _position(views)
            left = deadline - asyncio.get_running_loop().time()
            if now_at != position or left <= 0 or self.waiters.closed:
                return views, now_at
            await self.waiters.wait(watched, seen, left)

    async def page(self, query: TableQuery) -> TablePage:
        """A page of one of the store's tables, with nothing in it that is not durable."""
        if query.table == "offsets":
            return await self.look(lambda store: store.page(query))
        page = await asyncio.to_thread(self.store.page, query)
        # It may show a group commit that is on its way to the disk: once the writer has looked up, that has arrived.
        await self.look(lambda store: store.counts())
        return page

    async def poll_checks(self, poll: CheckPoll) -> list[CheckRequest]:
        self._refuse_while_draining()
        # Checks are handed out in rounds: whoever does not want to wait still waits for the next one.
        seconds = max(poll.wait_ms / 1000, 2 * TICK_SECONDS)
        return await self.checkback.members.poll(poll.group, poll.member, poll.max, seconds)

    def _refuse_while_draining(self) -> None:
        if self.draining:
            raise Draining()

    # --- life --------------------------------------------------------------------------------------------------

    async def count(self) -> None:
        """Bring the numbers that cost a look at the store up to date; the rest of the metrics always are."""
        passed = self.clock.elapsed_ms()
        if passed - self._counted_at >= COUNT_EVERY_MS and self.store.failure() is None:
            self._counted_at = passed
            self._collector.now_ms = self.clock.now_ms()
            with contextlib.suppress(TallystickError):  # too busy, or failing just now: the last numbers will do
                self._collector.counts = await self.look(lambda store: store.counts())
                self._collector.groups = await self.look(lambda store: store.lags(MAX_LAG_SERIES))

    def drain(self) -> None:
        """No new work; long polls go home. What was accepted is still finished."""
        self.draining = True
        self.waiters.close()
        self.checkback.members.close()

    async def close(self) -> None:
        self.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.checkback.close()
        await self.calls.close()
        await self.writer.stop()
        await self._outbound.close()
        self.store.close()


def _call_settings(config: Config) -> CallSettings:
    return CallSettings(
        timeout_ms=config.call_timeout,
        per_host=config.calls_per_host,
        in_flight=config.calls_in_flight,
        breaker_failures=config.call_breaker_failures,
        probe_ms=config.call_probe,
        probe_cap_ms=config.call_probe_cap,
    )


def _present(views: Iterable[TopicView | None]) -> list[TopicView]:
    return [view for view in views if view is not None]


def _position(views: Iterable[TopicView]) -> int:
    ends = msgspec.msgpack.encode([(view.name, view.created_at, view.ends) for view in views])
    return int.from_bytes(hashlib.blake2b(ends, digest_size=6).digest())


def _report_end(task: asyncio.Task[None]) -> None:
    """A task that runs for the broker's whole life has ended: if not by us, say so loudly."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("%s stopped", task.get_name(), exc_info=task.exception())
