"""The check-back's clockwork: claims what is due where somebody can be asked, asks, and reports what came of it.

Every channel (a producer group, a host, a database) has its own line in the store and its own share here. A
channel where nobody can be asked is not even looked at, so a dead group costs nothing and delays nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping

from tallystick.broker.checkback.databases import BarrierDatabases
from tallystick.broker.checkback.members import Members
from tallystick.broker.checkback.urls import ask_url
from tallystick.broker.metrics import Metrics
from tallystick.broker.outbound.answer import OutboundFailed
from tallystick.broker.outbound.outbound import Outbound
from tallystick.broker.writer import Writer
from tallystick.core.clock import Clock
from tallystick.core.errors import StorageFailed, StorageFull, TallystickError
from tallystick.core.ops import Answer, AnswerChecks
from tallystick.store.protocol import (
    STILL_UNKNOWN,
    Channel,
    Claim,
    ClaimChecks,
    Claimed,
    FailChecks,
    ParkOld,
    Store,
)

log = logging.getLogger("tallystick.broker.checkback")

TICK_SECONDS, QUIET_SECONDS = 0.1, 1.0  # between rounds, and the most while nothing is out or due
# New transactions of other brokers on a shared store are not seen here: look again at least this often.
LOOK_AGAIN_MS = 1_000
CLAIMS_AT_ONCE = 1_000
PARK_EVERY_SECONDS = 30.0


class _Asked:
    """Checks out with a member of a group, until it answers or its time is up."""

    __slots__ = ("at", "via")

    def __init__(self, via: str) -> None:
        self.at = time.perf_counter()
        self.via = via


class CheckScheduler:
    def __init__(
        self,
        store: Store,
        writer: Writer,
        clock: Clock,
        outbound: Outbound,
        databases: BarrierDatabases,
        metrics: Metrics,
        timeout_ms: int,
        per_target: int,
        max_polls: int,
    ) -> None:
        self._store, self._writer, self._clock = store, writer, clock
        self._outbound, self._databases, self._metrics = outbound, databases, metrics
        self._timeout_ms, self._per_target = timeout_ms, per_target
        self._wake = asyncio.Event()
        self._resting = False  # for longer than a tick
        self._prepared_at = -LOOK_AGAIN_MS  # what may be due within a second
        self.members = Members(max_polls, self._wake.set)
        self._next_look: dict[int, int] = {}  # per channel, by the clock that nobody can set
        self._asked: dict[str, _Asked] = {}
        self._busy: Counter[int] = Counter()  # per channel, checks under way (URLs and databases)
        self._out: set[str] = set()  # gids that a URL is being asked about
        self._reachable: set[int] = set()  # channels that somebody could be asked in, since the last look for idle ones
        self._tasks: set[asyncio.Task[None]] = set()

    # --- what the rest of the broker tells -------------------------------------------------------------------

    def prepared(self, after_ms: int) -> None:
        """Something was prepared that may be due sooner than all that is known."""
        if after_ms < LOOK_AGAIN_MS:
            self._next_look.clear()
            self._prepared_at = self._clock.elapsed_ms()
            if self._resting:  # only the first one after a while wakes us; the others wait for the next tick
                self._wake.set()

    def resumed(self) -> None:
        self._next_look.clear()
        self._wake.set()

    def answered(self, op: AnswerChecks) -> None:
        self._count("group", op.answers)
        for gid in op.answers if self._asked else ():
            asked = self._asked.pop(gid, None)
            if asked is not None:
                self._metrics.check_seconds.labels(asked.via).observe(time.perf_counter() - asked.at)

    def _count(self, via: str, answers: Mapping[str, Answer]) -> None:
        """Together: a bulk check-back answers thousands at a time."""
        for said, count in Counter(answers.values()).items():
            self._metrics.checks_answered.labels(via, said).inc(count)

    # --- the rounds ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        parked_at = time.monotonic()
        while True:
            # Not wait_for, which forgets a cancellation that comes together with the event: the end would hang.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._round()
                if time.monotonic() - parked_at > PARK_EVERY_SECONDS:
                    parked_at = time.monotonic()
                    await self._park_unreachable()
            except TallystickError as error:
                if not isinstance(error, StorageFailed | StorageFull):  # the writer logs these
                    log.warning("store %s: check-back has to wait: %s", self._store.id, error)
                await asyncio.sleep(1)

    def _pause(self) -> float:
        """Until the next round. While nothing is out, room for more comes only with a poll, which wakes us."""
        now, waits = self._clock.elapsed_ms(), QUIET_SECONDS
        if self._tasks or self._asked or now - self._prepared_at < LOOK_AGAIN_MS:
            waits = TICK_SECONDS
        elif self._next_look:
            waits = (min(self._next_look.values()) - now) / 1000
        waits = min(max(waits, TICK_SECONDS), QUIET_SECONDS)
        self._resting = waits > TICK_SECONDS
        return waits

    def _room(self, channel: Channel) -> int:
        """How many checks the channel can take now."""
        if channel.via == "group":
            return self.members.capacity(channel.name)
        if channel.via == "database":
            return CLAIMS_AT_ONCE if not self._busy[channel.id] else 0
        if channel.via == "none":
            return CLAIMS_AT_ONCE
        return self._per_target - self._busy[channel.id]

    def _channels(self) -> list[Channel]:
        return [channel for channel in self._store.channels() if channel.via != "call"]

    async def _round(self) -> None:
        """One round costs what is due, plus one look-up for each channel that can be asked and may have something."""
        self._metrics.producers.set(self.members.waiting)
        passed = self._clock.elapsed_ms()
        asking: dict[int, Channel] = {}
        by_room: defaultdict[int, list[int]] = defaultdict(list)
        for channel in self._channels():
            room = min(self._room(channel), CLAIMS_AT_ONCE)
            if room > 0:
                self._reachable.add(channel.id)
            if room > 0 and self._next_look.get(channel.id, 0) <= passed:
                asking[channel.id] = channel
                by_room[room].append(channel.id)
        if not asking:
            return
        ops = [ClaimChecks(ids, room, self._timeout_ms * 2) for room, ids in by_room.items()]
        for claimed in await self._writer.submit(ops):
            if isinstance(claimed, Claimed):
                self._note_next(claimed)
                self._ask_all(claimed.claims, asking)

    def _note_next(self, claimed: Claimed) -> None:
        now, passed = self._clock.now_ms(), self._clock.elapsed_ms()
        for channel, due in claimed.next_due.items():
            wait = LOOK_AGAIN_MS if due is None else min(LOOK_AGAIN_MS, due - now)
            self._next_look[channel] = passed + wait

    def _ask_all(self, claims: list[Claim], channels: dict[int, Channel]) -> None:
        lines: defaultdict[int, list[Claim]] = defaultdict(list)
        for claim in claims:
            lines[claim.channel].append(claim)
        for channel_id, line in lines.items():
            channel = channels[channel_id]
            if channel.via == "group":
                self._ask_group(channel, line)
            elif channel.via == "database":
                by_source: defaultdict[str, list[str]] = defaultdict(list)
                for claim in line:
                    by_source[claim.request.source].append(claim.request.gid)
                for source, gids in by_source.items():
                    self._start(self._ask_database(channel, gids, source))
            elif channel.via == "none":
                # Whoever prepared these said that nobody is to be asked, and this broker's operator allowed it.
                self._start(self._believe("none", {claim.request.gid: "committed" for claim in line}))
            else:
                for claim in line:
                    self._begin_url(channel, claim)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- by group --------------------------------------------------------------------------------------------

    def _ask_group(self, channel: Channel, claims: list[Claim]) -> None:
        left = self.members.hand_out(channel.name, claims)
        unasked = {claim.request.gid for claim in left}
        asked = [claim.request.gid for claim in claims if claim.request.gid not in unasked]
        asking = _Asked("group")
        self._asked.update(dict.fromkeys(asked, asking))
        self._metrics.checks_sent.labels("group").inc(len(asked))
        if asked:
            self._start(self._await_group(asked, asking))
        if unasked:
            # The members went away between the claim and now: nobody was asked, so it was no check.
            self._start(self._give_up(dict.fromkeys(unasked, "no live member"), counted=False, retry_ms=0))

    async def _await_group(self, gids: list[str], asking: _Asked) -> None:
        await asyncio.sleep(self._timeout_ms / 1000)
        # A gid that was answered with `unknown` may be out again by now: that check has a time of its own.
        silent = [gid for gid in gids if self._asked.get(gid) is asking]
        for gid in silent:
            del self._asked[gid]
        if silent:
            self._metrics.checks_failed.labels("group", "timeout").inc(len(silent))
            await self._give_up(dict.fromkeys(silent, "the member that was asked did not answer in time"))

    # --- by URL and by database ------------------------------------------------------------------------------

    def _begin_url(self, channel: Channel, claim: Claim) -> None:
        # A check with a long time of its own may outlive its claim: it is not made twice at once.
        if claim.request.gid not in self._out:
            self._out.add(claim.request.gid)
            self._busy[channel.id] += 1
            self._start(self._ask_url(channel, claim))

    async def _ask_url(self, channel: Channel, claim: Claim) -> None:
        gid = claim.request.gid
        began = time.perf_counter()
        self._metrics.checks_sent.labels("url").inc()
        seconds = (claim.timeout_ms or self._timeout_ms) / 1000
        try:
            said = await ask_url(
                self._outbound, claim.target, gid, seconds, claim.headers, claim.request.source, claim.dtm
            )
        except OutboundFailed as error:
            self._metrics.checks_failed.labels("url", error.kind).inc()
            await self._give_up({gid: str(error)}, permanent=error.permanent)
        else:
            self._metrics.check_seconds.labels("url").observe(time.perf_counter() - began)
            if said == "unknown" and claim.retry_ms:
                self._count("url", {gid: said})
                await self._give_up({gid: STILL_UNKNOWN}, retry_ms=claim.retry_ms)
            else:
                await self._believe("url", {gid: said})
        finally:
            self._out.discard(gid)
            self._busy[channel.id] -= 1
            self._next_look.pop(channel.id, None)
            self._wake.set()

    async def _ask_database(self, channel: Channel, gids: list[str], source: str) -> None:
        self._busy[channel.id] += 1
        began = time.perf_counter()
        self._metrics.checks_sent.labels("database").inc(len(gids))
        try:
            said = await self._databases.ask(channel.name, gids, self._timeout_ms / 1000, source)
        except Exception as error:
            # Whatever a driver raises (unreachable, no table, wrong password) is no answer, and worth telling.
            self._metrics.checks_failed.labels("database", "error").inc(len(gids))
            reason = " ".join(str(error).split())  # of some drivers it has several lines
            log.warning("database %s did not answer: %s", channel.name, reason)
            await self._give_up(dict.fromkeys(gids, f"database {channel.name}: {reason}"[:500]))
        else:
            self._metrics.check_seconds.labels("database").observe(time.perf_counter() - began)
            await self._believe("database", said)
        finally:
            self._busy[channel.id] -= 1
            self._next_look.pop(channel.id, None)
            self._wake.set()

    # --- what came of it -------------------------------------------------------------------------------------

    async def _believe(self, via: str, said: dict[str, Answer]) -> None:
        self._count(via, said)
        try:
            await self._writer.submit([AnswerChecks(said)])
        except TallystickError as error:
            log.warning("an answer could not be stored, the check will be made again: %s", error)

    async def _give_up(
        self, errors: dict[str, str], permanent: bool = False, counted: bool = True, retry_ms: int | None = None
    ) -> None:
        try:
            await self._writer.submit([FailChecks(errors, permanent, counted, retry_ms)])
        except TallystickError as error:
            log.warning("a failed check could not be noted: %s", error)

    async def _park_unreachable(self) -> None:
        """Park the oldest of the channels where nobody could be asked since this was done last. To have no room just
        now is not enough: a member is away while it looks for its answers."""
        idle = [channel.id for channel in self._channels() if channel.id not in self._reachable]
        self._reachable.clear()
        if idle:
            await self._writer.submit([ParkOld(idle, CLAIMS_AT_ONCE)])

    async def close(self) -> None:
        self.members.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
