"""The broker: one store, one writer, and the things that run beside it. Its door is what protocols speak to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from tallystick.broker.access.addresses import AddressesWay
from tallystick.broker.access.certificates import CertificatesWay
from tallystick.broker.access.identities import Identities, IdentityWay
from tallystick.broker.access.tokens import TokensWay
from tallystick.broker.admission import Admission
from tallystick.broker.alerts import Alerts
from tallystick.broker.caller import ANYBODY, Caller, Callers
from tallystick.broker.calls.deliverer import Calls, CallSettings
from tallystick.broker.checkback.databases import BarrierDatabases
from tallystick.broker.checkback.scheduler import CheckScheduler
from tallystick.broker.config import Config
from tallystick.broker.door import BrokerDoor
from tallystick.broker.metrics import MAX_LAG_SERIES, Metrics, StoreCollector
from tallystick.broker.outbound.allow_list import AllowedUrls
from tallystick.broker.outbound.outbound import Outbound
from tallystick.broker.outbound.signer import Signer
from tallystick.broker.sweeps import deliver_delayed, start_sweeps
from tallystick.broker.threads import on_a_thread
from tallystick.broker.turns import Turns
from tallystick.broker.waiters import Waiters
from tallystick.broker.writer import SpaceGuard, Writer
from tallystick.core.clock import Clock, SystemClock
from tallystick.core.errors import BrokerUnavailable, ConfigError, Draining, NotAllowed, TallystickError
from tallystick.core.token_records import TokenRecord, admins_made_while_open
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
        up_to_date: Callable[[], bool] = lambda: True,
    ) -> None:
        """`outbound`, if given, takes the place of the ways out that the configuration allows. Without `makes_calls`
        calls are kept, and nobody makes them. `weaknesses` are those of the store's server, which are put up with.
        `up_to_date` tells whether this is known to be the store's only broker: one that was superseded without knowing
        it has tokens in memory that were revoked since."""
        self.config, self.weaknesses = config, weaknesses
        self.clock = clock or SystemClock()
        self.limits = config.limits()
        self.metrics = Metrics()
        self._outbound = outbound or _ways_out(config)
        self.allowed = self._outbound.allowed
        if config.alert_url:
            try:
                self.allowed.check(config.alert_url, "alert_url")
            except NotAllowed as error:
                raise ConfigError(error.detail, field="alert_url") from error
        databases = BarrierDatabases(config.databases, config.barrier_table)
        self._admission = Admission(config, self.limits, self.allowed, databases)
        self._store = store or open_store(config)
        self.identities, self.callers = _identities(config, self.clock, self._store, up_to_date), Callers()
        self._collector = StoreCollector(self._store, self.metrics, lambda: self._writer.failure())
        self.metrics.registry.register(self._collector)
        self._waiters = Waiters(config.max_long_polls)
        self.turns = Turns()
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
            *start_sweeps(self._writer, self._store, self.clock),
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

    def tell_access(self) -> None:
        """Tell the log, at the start, whether anybody is asked who they are, and who could answer."""
        config = self.config
        if config.auth == "off":
            log.info("access control is off: whoever reaches this broker may do everything")
            return
        kept, static = len(self._store.tokens()), len(config.static_tokens)
        log.info("access control is on; tokens: %d in the store, %d in the configuration", kept, static)
        if doubtful := admins_made_while_open(self._store.tokens(), self.clock.now_ms()):
            log.warning(
                "these tokens may do everything, and were made while access control was off, when anybody could make "
                "them: %s. Revoke what is not yours: `tallystick tokens revoke NAME`",
                ", ".join(doubtful),
            )
        if not (kept or static or config.jwt_jwks or config.certificates or config.address_grants):
            where = "--store URL" if config.shared else f"--data-dir {config.data_dir}"
            log.warning(
                "nobody can be let in, because there is no token yet: stop the broker, run `tallystick tokens create "
                "NAME --role admin %s`, and start it again",
                where,
            )

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


def _identities(config: Config, clock: Clock, store: Store, up_to_date: Callable[[], bool]) -> Identities | None:
    """The ways to tell who asks; None if nobody is asked."""
    if config.auth == "off":
        return None

    def kept() -> Sequence[TokenRecord]:
        if not up_to_date():
            raise BrokerUnavailable("this broker is cut off from its cluster: it cannot tell which tokens still hold")
        return store.tokens()

    static = [
        TokenRecord(one.name, one.id, one.token_sha256, (one.grant,), 0, "", one.expires_at, one.limits)
        for one in config.static_tokens
    ]
    tokens = TokensWay(clock, static, kept)
    said: list[IdentityWay] = [tokens]
    if config.jwt_jwks:
        from tallystick.broker.access.jwt import jwt_way  # late: the cryptography is large, and may not be needed

        said.append(jwt_way(config, clock))
    shown: list[IdentityWay] = [CertificatesWay(config.certificates), AddressesWay(config.address_grants)]
    return Identities(said, shown, tokens.holds)


def _ways_out(config: Config) -> Outbound:
    signer = Signer(config.signing_keys_file) if config.signing_keys_file else None
    return Outbound(AllowedUrls(config.allowed_urls), signer=signer)


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
