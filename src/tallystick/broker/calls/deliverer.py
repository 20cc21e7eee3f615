"""Making calls: claims what is due of the hosts that can be called, makes the calls, and has the results written.

Every host has its own line in the store, its own share and its own circuit breaker here, so a dead one delays nobody.
Which calls are due, in which order and when again, is the store's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict

from msgspec import Struct

from tallystick.broker.calls.breaker import Breaker
from tallystick.broker.calls.call_waiters import CallWaiters
from tallystick.broker.calls.finisher import Finisher
from tallystick.broker.calls.hosts import Host
from tallystick.broker.calls.protocols import make_call
from tallystick.broker.calls.verdicts import CallVerdict
from tallystick.broker.metrics import Metrics
from tallystick.broker.outbound.outbound import Outbound
from tallystick.broker.writer import Writer
from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallResult, CallsView, CallView, HostView
from tallystick.core.clock import Clock
from tallystick.core.errors import StorageFailed, StorageFull, TallystickError
from tallystick.core.message import MAX_TIMEOUT_MS
from tallystick.core.urls import host_place
from tallystick.store.protocol import CallClaim, ClaimCalls, ClaimedCalls, Progress, RequeueCalls, Result, Store

log = logging.getLogger("tallystick.broker.calls")

TICK_SECONDS, QUIET_SECONDS = 0.1, 1.0  # between rounds, and the most while nothing is out or due
LOOK_AGAIN_MS = 5_000  # calls of other brokers on a shared store are not seen here: look at least this often
# A claim must outlive the call: the longest wait here behind another one, then its own longest time.
LEASE_MS = 2 * MAX_TIMEOUT_MS + 60_000
REQUEUE_AT_ONCE = 1_000
PROBE_BYTES = 1024 * 1024  # bodies of the calls that a probe is chosen from; the last one may exceed it
TIMED_OUT_MS = 50  # a call that ends so shortly before its time-out counts as one that has timed out
MAX_ERROR = 500


class CallSettings(Struct, frozen=True):
    timeout_ms: int = 10_000
    per_host: int = 64
    in_flight: int = 2_000
    breaker_failures: int = 5
    probe_ms: int = 1_000
    probe_cap_ms: int = 5_000
    max_bytes: int = 64 * 1024 * 1024
    max_waiters: int = 10_000
    drain_ms: int = 2_000


class Calls:
    """Made inside a running event loop. `run` goes on until it is cancelled; then `close`."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        clock: Clock,
        outbound: Outbound,
        metrics: Metrics,
        settings: CallSettings,
    ) -> None:
        self._store, self._writer, self._clock = store, writer, clock
        self._outbound, self._metrics, self._settings = outbound, metrics, settings
        self._hosts: dict[int, Host] = {}
        self._due: set[int] = set()  # channels to look at in the next round
        self._wake = asyncio.Event()
        self._looked_around_at = float("-inf")
        # All that was claimed and whose result is not durable yet, with its size. A call that is in here is never
        # begun again, even if the store should hand it out once more.
        self._held: dict[tuple[str, int], int] = {}
        self._held_bytes = 0
        self._ended: set[tuple[str, int]] = set()  # calls that were out when the last claim began, and no longer are
        self._claiming: asyncio.Future[list[Result]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._finisher = Finisher(writer, self._durable)
        self._waiters = CallWaiters(writer, settings.max_waiters)
        metrics.calls_in_flight.set_function(lambda: len(self._tasks))
        metrics.call_hosts_open.set_function(lambda: sum(host.breaker.open for host in self._hosts.values()))

    # --- what the rest of the broker asks and tells ----------------------------------------------------------

    def called(self, channels: set[int]) -> None:
        """Calls have come in line in these channels."""
        self._due |= channels
        self._wake.set()

    async def wait(self, gid: str, seconds: float) -> CallsView:
        """A transaction's calls, once each that could be tried has been, or when the time is up."""
        view = await self._waiters.wait(gid, seconds)
        self.mark(view.calls)
        return view

    def mark(self, calls: list[CallView]) -> None:
        """Set `host_down` where a call waits for a host whose circuit is open. Not where it is out, or may go out as
        the next probe."""
        now = self._clock.elapsed_ms()
        down = {host.name for host in self._hosts.values() if host.breaker.open and not host.breaker.may_probe(now)}
        if down:
            for call in calls:
                waits = call.state == "waiting" and (call.gid, call.index) not in self._held
                call.host_down = waits and host_place(call.url) in down

    def hosts(self) -> list[HostView]:
        return sorted((host.view(self._clock) for host in self._hosts.values()), key=lambda view: view.name)

    # --- the rounds ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        await self._take_over()
        self._learn_hosts(catching_up=True)
        while True:
            # Not wait_for, which forgets a cancellation that comes together with the event: the end would hang.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            self._wake.clear()
            self._look_around()
            taken, self._due = self._due, set()
            try:
                await self._round(taken)
            except TallystickError as error:
                self._due |= taken
                if not isinstance(error, StorageFailed | StorageFull):  # the writer tells of that
                    log.warning("store %s: calls have to wait: %s", self._writer.store_id, error)
                await asyncio.sleep(TICK_SECONDS)

    def _pause(self) -> float:
        """Until the next round. While nothing is out, only its time or `called` makes a host worth a look."""
        hosts = self._hosts.values()
        if self._due or self._held or self._tasks or any(host.breaker.open for host in hosts):
            return TICK_SECONDS
        now = self._clock.elapsed_ms()
        waits = min((host.next_look - now for host in hosts), default=1000) / 1000
        return min(max(waits, TICK_SECONDS), QUIET_SECONDS)

    async def _take_over(self) -> None:
        """Nobody else has this store open, so what is claimed there was claimed by a broker that is gone."""
        more = True
        while more:
            try:
                (progress,) = await self._writer.submit([RequeueCalls(REQUEUE_AT_ONCE, all=True)])
                more = isinstance(progress, Progress) and progress.more
            except TallystickError as error:
                if not isinstance(error, StorageFailed | StorageFull):
                    log.warning(
                        "store %s: calls of the time before the start have to wait: %s", self._writer.store_id, error
                    )
                await asyncio.sleep(1)

    def _look_around(self) -> None:
        """Now and then, not at every wake-up: hosts whose time has come."""
        if time.monotonic() - self._looked_around_at < TICK_SECONDS:
            return
        if not self._hosts:
            self._learn_hosts()
        self._looked_around_at = time.monotonic()
        now = self._clock.elapsed_ms()
        self._open_for_slow(now)
        self._due |= {host.channel for host in self._hosts.values() if host.wants_a_look(now)}

    def _open_for_slow(self, now: int) -> None:
        """Hosts with slow calls get more at once, out of half of what all hosts share: hosts that never answer must
        leave the rest to the others."""
        spare = self._settings.in_flight // 2 - len(self._held)
        if self._held_bytes > self._settings.max_bytes // 2:
            spare = 0
        for host in self._hosts.values():
            opened = host.open_for_slow(now, spare)
            spare -= opened
            if opened:
                self._begin_next(host)

    def _learn_hosts(self, catching_up: bool = False) -> None:
        probe = Backoff(self._settings.probe_ms, self._settings.probe_cap_ms)
        for channel in self._store.channels():
            if channel.via == "call" and channel.id not in self._hosts:
                breaker = Breaker(self._settings.breaker_failures, probe)
                self._hosts[channel.id] = Host(channel.id, channel.name, self._settings.per_host, breaker)
                self._hosts[channel.id].catching_up = catching_up

    async def _round(self, channels: set[int]) -> None:
        """Claim for the hosts that have room, and begin what was claimed."""
        now = self._clock.elapsed_ms()
        asking = self._with_room(channels, now)
        room = self._settings.in_flight - len(self._held)
        room_bytes = self._settings.max_bytes - self._held_bytes
        if not asking or room <= 0 or room_bytes <= 0:
            self._due |= {host.channel for host, _ in asking}  # room comes when results are durable
            return
        share = max(1, room // len(asking))
        alike: defaultdict[tuple[int, bool], list[Host]] = defaultdict(list)
        ops = []
        for host, wanted in asking[:room]:
            if host.breaker.open:
                choice = min(host.probe_choice, share)
                host.breaker.probe_begun(now)
                ops.append(ClaimCalls([host.channel], choice, min(room_bytes, PROBE_BYTES), LEASE_MS, early=True))
            else:
                alike[(min(wanted, share), host.catching_up)].append(host)
        self._due |= {host.channel for host, _ in asking[room:]}
        ops += [
            ClaimCalls([host.channel for host in hosts], limit, room_bytes // len(alike) + 1, LEASE_MS, early)
            for (limit, early), hosts in alike.items()
        ]
        await self._claim(ops, [host for host, _ in asking[:room]], now)

    def _with_room(self, channels: set[int], now: int) -> list[tuple[Host, int]]:
        if not channels <= self._hosts.keys():
            self._learn_hosts()
        found = []
        for channel in channels & self._hosts.keys():
            host = self._hosts[channel]
            wanted = host.room(now)
            if wanted:
                found.append((host, wanted))
            else:
                host.wait_for_room()
        return found

    async def _claim(self, ops: list[ClaimCalls], hosts: list[Host], now: int) -> None:
        try:
            self._ended.clear()
            self._claiming = self._writer.submit(ops)
            # Shielded: what a claim brings must be given back, even if nobody is here to make it (see close).
            answers = await asyncio.shield(self._claiming)
        except TallystickError:
            for host in hosts:
                if host.breaker.open:
                    host.breaker.probe_undone(now)
            raise
        self._claiming = None
        lines: defaultdict[int, list[CallClaim]] = defaultdict(list)
        for claimed in answers:
            if isinstance(claimed, ClaimedCalls):
                for claim in claimed.claims:
                    lines[claim.channel].append(claim)
                for channel, due in claimed.next_due.items():
                    due_in = None if due is None else due - self._clock.now_ms()
                    self._hosts[channel].looked(now, lines[channel], due_in, LOOK_AGAIN_MS)
        for host in hosts:
            self._take(host, lines[host.channel], now)

    # --- claims and calls ------------------------------------------------------------------------------------

    def _take(self, host: Host, claims: list[CallClaim], now: int) -> None:
        new = [claim for claim in claims if (claim.gid, claim.index) not in self._held]
        # Its lease seemed to be over, and its result came right behind the claim: the store knows whether it is done.
        self._release([claim for claim in new if (claim.gid, claim.index) in self._ended])
        new = [claim for claim in new if (claim.gid, claim.index) not in self._ended]
        for claim in new:
            self._held[claim.gid, claim.index] = len(claim.call.body)
            self._held_bytes += len(claim.call.body)
        if not host.breaker.open:
            host.queue.extend(new)
            self._begin_next(host)
        elif new:
            chosen = host.choose_probe(new)
            self._begin(host, chosen, probe=True)
            self._release([claim for claim in new if claim is not chosen])
        elif claims:
            host.breaker.probe_undone(now)
        else:
            host.breaker.probe_spared(now)

    def _begin_next(self, host: Host) -> None:
        while host.may_begin:
            self._begin(host, host.queue.popleft(), probe=False)
        if host.runs_low:
            self._due.add(host.channel)
            self._wake.set()

    def _begin(self, host: Host, claim: CallClaim, probe: bool) -> None:
        number = host.begin(claim, self._clock.elapsed_ms(), probe)
        task = asyncio.create_task(self._make(host, claim, number, probe))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(self, host: Host, claim: CallClaim, number: int, probe: bool) -> None:
        began = time.perf_counter()
        # What is told if the task is cancelled: it may have reached the service, nobody knows.
        verdict = CallVerdict("unreachable", "the broker stopped before the answer came", reached=False)
        try:
            verdict = await make_call(self._outbound, claim.gid, claim.call, self._settings.timeout_ms, claim.dtm)
        except Exception:
            log.exception("call %s/%s of %s met an error of ours", claim.gid, claim.index, host.name)
            verdict = CallVerdict("error", "internal error; the broker's log has the details", reached=False)
        finally:
            self._made(host, claim, number, probe, verdict, time.perf_counter() - began)

    def _made(
        self, host: Host, claim: CallClaim, number: int, probe: bool, verdict: CallVerdict, seconds: float
    ) -> None:
        host.end(number)
        self._metrics.call_made(claim.call.protocol, verdict.outcome, seconds)
        now = self._clock.elapsed_ms()
        unreachable = verdict.outcome == "unreachable"
        own = unreachable and not self._closing and self._is_own_failure(host, claim, number, now, seconds)
        if own or not unreachable or self._counts(host, claim, probe, now):
            self._finisher.add(CallResult(claim.gid, claim.index, verdict.outcome, verdict.error[:MAX_ERROR], own))
        else:
            self._release([claim])
        if self._closing:
            return
        last_probe = probe and host.is_last_probe(number)
        if verdict.reached:
            if host.answered(claim, number, now):
                log.info("%s answers again", host.name)
        elif unreachable and (last_probe or not own):
            if host.unreachable(now, last_probe, verdict.broken):
                log.warning("%s does not answer, its calls wait: %s", host.name, verdict.error)
                self._give_back(host)
        elif last_probe:
            host.breaker.probe_undone(now)  # it could not be sent, which tells nothing about the host
        self._begin_next(host)

    def _is_own_failure(self, host: Host, claim: CallClaim, number: int, now: int, seconds: float) -> bool:
        timeout_ms = claim.call.timeout_ms or self._settings.timeout_ms
        return host.is_own_failure(claim, number, now, seconds * 1000 >= timeout_ms - TIMED_OUT_MS)

    def _counts(self, host: Host, claim: CallClaim, probe: bool, now: int) -> bool:
        """Whether a call that could not reach its host has used up one of its tries."""
        calls = self._store.settings.calls
        first_ms = claim.retry_ms or calls.first_ms
        wait_ms = Backoff(first_ms, max(calls.cap_ms, first_ms), calls.jitter).wait_ms(claim.attempts)
        return host.counts_as_a_try(claim, now, wait_ms if probe else 0)

    def _give_back(self, host: Host) -> None:
        self._release(list(host.queue))
        host.queue.clear()
        host.more = True

    def _release(self, claims: list[CallClaim]) -> None:
        """Claimed and not tried: back in line."""
        for claim in claims:
            self._finisher.add(CallResult(claim.gid, claim.index, "released"))

    def _durable(self, results: list[CallResult]) -> None:
        for result in results:
            key = (result.gid, result.index)
            # Not one that was given back: it is not out, and the next claim of it is to be carried out.
            if self._claiming is not None and key in self._held:
                self._ended.add(key)
            self._held_bytes -= self._held.pop(key, 0)
        self._waiters.finished({result.gid for result in results})
        if self._due:
            self._wake.set()

    # --- the end ---------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Nothing new is begun; calls that are out get a little time, then their results are written."""
        self._closing = True
        self._waiters.close()
        await self._give_back_claims()
        for host in self._hosts.values():
            self._give_back(host)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.drain_ms / 1000)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._finisher.close(self._settings.drain_ms / 1000)

    async def _give_back_claims(self) -> None:
        """What a claim brings that was under way when `run` was cancelled."""
        if self._claiming is None:
            return
        with contextlib.suppress(TallystickError):
            for claimed in await self._claiming:
                if isinstance(claimed, ClaimedCalls):
                    self._release([one for one in claimed.claims if (one.gid, one.index) not in self._held])
