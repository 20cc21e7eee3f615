"""The broker: one store, one writer, and the things that run beside it. Its door is what protocols speak to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

from tallystick.broker.admission import Admission
from tallystick.broker.alerts import Alerts
from tallystick.broker.calls.deliverer import Calls, CallSettings
from tallystick.broker.checkback.databases import BarrierDatabases
from tallystick.broker.checkback.scheduler import CheckScheduler
from tallystick.broker.config import Config
from tallystick.broker.door import ANYBODY, BrokerDoor, Caller
from tallystick.broker.metrics import MAX_LAG_SERIES, Metrics, StoreCollector
from tallystick.broker.outbound.allow_list import AllowedUrls
from tallystick.broker.outbound.outbound import Outbound
from tallystick.broker.sweeps import deliver_delayed, start_sweeps
from tallystick.broker.threads import on_a_thread
from tallystick.broker.waiters import Waiters
from tallystick.broker.writer import SpaceGuard, Writer
from tallystick.core.clock import Clock, SystemClock
from tallystick.core.errors import ConfigError, Draining, NotAllowed, TallystickError
from tallystick.store.memory import open_memory
from tallystick.store.protocol import Store, Written

log = logging.getLogger("tallystick.broker")

COUNT_EVERY_MS = 1_000
COUNT_SECONDS = 2.0  # for a look at the store: whoever collects metrics wants an answer while a server is slow, too


def open_store(config: Config) -> Store:
    settings = config.store_settings()
    if config.store == "memory":
        return open_memory(settings)
    from tallystick.store.rocksdb import open_rocksdb  # late: a broker in memory does without

    return open_rocksdb(Path(config.data_dir), settings)


class Broker:
    """Made inside a running event loop; `close()` finishes what waits and lets go of the store."""

    def __init__(
        self,
        config: Config,
        store: Store | None = None,
        clock: Clock | None = None,
        outbound: Outbound | None = None,
        *,
        makes_calls: bool = True,
        weaknesses: Sequence[str] = (),
    ) -> None:
        """`outbound`, if given, takes the place of the ways out that the configuration allows. Without `makes_calls`
        calls are kept, and nobody makes them. `weaknesses` are those of the store's server, which are put up with."""
        self.config, self.weaknesses = config, weaknesses
        self.clock = clock or SystemClock()
        self.limits = config.limits()
        self.metrics = Metrics()
        self._outbound = outbound or Outbound(AllowedUrls(config.allowed_urls))
        self.allowed = self._outbound.allowed
        if config.alert_url:
            try:
                self.allowed.check(config.alert_url, "alert_url")
            except NotAllowed as error:
                raise ConfigError(error.detail, field="alert_url") from error
        databases = BarrierDatabases(config.databases, config.barrier_table)
        self._admission = Admission(config, self.limits, self.allowed, databases)
        self._store = store or open_store(config)
        self._collector = StoreCollector(self._store, self.metrics)
        self.metrics.registry.register(self._collector)
        self._waiters = Waiters(config.max_long_polls)
        space = SpaceGuard(config.data_dir if config.store == "rocksdb" else None, config.min_free_bytes)
        self._writer = Writer(
            self._store, self.clock, space, config.max_waiting_bytes, self._durable, self.metrics.commit_seconds
        )
        self._alerts = Alerts(config.alert_url, self._outbound, self.metrics)
        self.checkback = CheckScheduler(
            self._store,
            self._writer,
            self.clock,
            self._outbound,
            databases,
            self.metrics,
            config.check_timeout,
            config.checks_per_target,
            config.max_long_polls,
        )
        self.calls = Calls(self._store, self._writer, self.clock, self._outbound, self.metrics, _call_settings(config))
        self._tasks = [
            *([asyncio.create_task(self.calls.run(), name="calls")] if makes_calls else []),
            asyncio.create_task(self.checkback.run(), name="check-back"),
            asyncio.create_task(self._alerts.run(), name="alerts"),
            *start_sweeps(self._writer, self.clock),
        ]
        for task in self._tasks:
            task.add_done_callback(_report_end)
        self._counted_at = -COUNT_EVERY_MS

    def _durable(self, written: Written) -> None:
        """After every group commit: wake those who wait for what it made visible, tell what happened."""
        if written.appended:
            self._waiters.appended({topic for topic, _ in written.appended})
        if written.called:
            self.calls.called(written.called)
        for event in written.events:
            self._alerts.tell(event)
        for topic in written.made:
            log.info("topic %r was made, with %d queues, by %s", topic.name, topic.queues, topic.by)
        self.metrics.totals.update(written.counted)

    def door(self, caller: Caller = ANYBODY) -> BrokerDoor:
        """The way in, for one caller."""
        return BrokerDoor(self, caller)

    # --- life --------------------------------------------------------------------------------------------------

    async def count(self) -> None:
        """Bring the numbers that cost a look at the store up to date; the rest of the metrics always are."""
        passed = self.clock.elapsed_ms()
        if passed - self._counted_at >= COUNT_EVERY_MS and self._store.failure() is None:
            self._counted_at = passed
            self._collector.now_ms = self.clock.now_ms()
            # Too busy, too slow, or failing just now: the last numbers will do.
            with contextlib.suppress(TallystickError, TimeoutError):
                async with asyncio.timeout(COUNT_SECONDS):
                    self._collector.counts = await self._writer.look(lambda store: store.counts())
                    self._collector.groups = await self._writer.look(lambda store: store.lags(MAX_LAG_SERIES))

    async def deliver_delayed(self) -> None:
        """For those who move its clock: what has become due is visible when this returns."""
        await deliver_delayed(self._writer)

    @property
    def draining(self) -> bool:
        return self._admission.refusal is not None

    def drain(self, refusal: type[TallystickError] = Draining) -> None:
        """No new work, which is refused with this; long polls go home. What was accepted is still finished."""
        if self.draining:
            return
        self._admission.refusal = self._writer.refusal = refusal
        # Who waits on a broker that ends gets what there is; who waits for a store that is moved is to ask elsewhere.
        told = None if refusal is Draining else refusal
        self._waiters.close(told)
        self.checkback.members.close(told)

    async def close(self) -> None:
        self.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.checkback.close()
        await self.calls.close()
        await self._writer.stop()
        await self._outbound.close()
        await on_a_thread(self._store.close, "tallystick-close")


def _call_settings(config: Config) -> CallSettings:
    return CallSettings(
        timeout_ms=config.call_timeout,
        per_host=config.calls_per_host,
        in_flight=config.calls_in_flight,
        breaker_failures=config.call_breaker_failures,
        probe_ms=config.call_probe,
        probe_cap_ms=config.call_probe_cap,
    )


def _report_end(task: asyncio.Task[None]) -> None:
    """A task that runs for the broker's whole life has ended: if not by us, say so loudly."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("%s stopped", task.get_name(), exc_info=task.exception())
