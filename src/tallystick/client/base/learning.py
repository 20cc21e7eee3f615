"""Learning the ways into the service's databases beside the blocks, on second connections.

A block never waits for one: it holds a connection, and in a full pool the second comes only when a first is given back.
So a block names its database by what its own connection sees, and takes the way as it is. Whether the way leads there
is verified here, with a limit. Until then nothing wrong can be answered: each answer verifies the place again.
"""

from __future__ import annotations

import asyncio
import logging

from tallystick.barrier.errors import TablesMissing, WrongDatabase
from tallystick.barrier.operations.identity import Whereabouts, ensure_identity, require_here
from tallystick.client.base.databases import LEARNING, DatabaseBusy, Databases, Door, run_on_new, within
from tallystick.client.base.opened_connections import RefusedOpener
from tallystick.client.base.stats import Stats
from tallystick.client.base.workers import Workers
from tallystick.core.backoff import Backoff

log = logging.getLogger("tallystick.client")

ATTEMPT_SECONDS = 10.0
AGAIN_SECONDS = 10.0
"""After this time, a block asks again for a way where none was found."""
RETRY = Backoff(first_ms=200, cap_ms=30_000)
UNCOMMITTED_ATTEMPTS = 8
"""An identity that a block has given itself is seen once the block is committed, and never if it is not."""


class Learning:
    """Verifies ways, one task for each database. Belongs to one event loop."""

    def __init__(self, databases: Databases, workers: Workers, table: str, stats: Stats) -> None:
        self._databases = databases
        self._workers = workers
        self._table = table
        self._stats = stats
        self._underway: dict[str, asyncio.Task[None]] = {}

    async def learn(self, address: str, here: Whereabouts, door: Door | None, patience: float = 0.0) -> str:
        """Take the way that a block has found, and begin to verify it; its source, "" if there is no second way in.

        Args:
            patience: How long to wait for the verification, in seconds. Only for a file, which has no pool.
        """
        source = here.source(address)
        ways = [way for way in (door, *self._databases.all_given) if way is not None]
        if not ways:
            return ""
        if not self._databases.knows(source):
            self._begin(source, ways, here, again_after=0.0 if patience else AGAIN_SECONDS)
        if patience and source in self._underway:
            await asyncio.wait([self._underway[source]], timeout=patience)
        return source if self._databases.knows(source) else ""

    def _begin(self, source: str, ways: list[Door], here: Whereabouts, again_after: float) -> None:
        known_for = self._databases.nowhere_for(source)
        if known_for is None:
            self._databases.take(source, ways[0])
        elif known_for < again_after:
            return
        if source not in self._underway:
            task = asyncio.get_running_loop().create_task(self._verify(source, ways, here))
            self._underway[source] = task
            task.add_done_callback(lambda ended: self._ended(source, ended))

    def _ended(self, source: str, task: asyncio.Task[None]) -> None:
        self._underway.pop(source, None)
        self._databases.drop(source)  # unless it was verified
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("verifying the way into %s ended unexpectedly", source, exc_info=failure)

    async def sure(self, source: str) -> Door | None:
        """The way, once it is verified; None if there is none."""
        if source in self._underway:
            await asyncio.wait([self._underway[source]])
        return self._databases.door(source)

    async def stop(self) -> None:
        tasks = list(self._underway.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _verify(self, source: str, ways: list[Door], here: Whereabouts) -> None:
        failures = 0
        while True:
            try:
                way = await self._way_in(source, ways, here, failures)
                break
            except Exception as failure:
                failures += 1
                self._failed(source, failure, failures)
            await asyncio.sleep(RETRY.wait_ms(failures) / 1000)
        if way is None:
            self._log_nowhere(source)
            self._databases.lead_nowhere(source)
            return
        self._databases.settle(source, way)
        if failures:
            log.info("the way into %s is verified", source)

    async def _way_in(self, source: str, ways: list[Door], here: Whereabouts, failures: int) -> Door | None:
        """The first way that leads there; None if each leads elsewhere. Raises if one could not be tried."""
        failed: Exception | None = None
        for way in ways:
            try:
                await within(ATTEMPT_SECONDS, self._try(way, source, here))
            except (WrongDatabase, TablesMissing) as wrong:
                if here.kept or here.placed or failures >= UNCOMMITTED_ATTEMPTS:
                    log.info("not a way into %s: %s", source, wrong)
                else:
                    failed = wrong
            except Exception as failure:
                failed = failure
            else:
                return way
        if failed is not None:
            raise failed
        return None

    async def _try(self, way: Door, source: str, here: Whereabouts) -> None:
        if here.placed:
            await self._give_identity(way)
        await run_on_new(self._workers, way, require_here(source, table=self._table), LEARNING)

    async def _give_identity(self, way: Door) -> None:
        try:
            await run_on_new(self._workers, way, ensure_identity(table=self._table), LEARNING)
        except Exception as failure:
            log.warning("%s: the table could not be given an identity: %s", self._table, failure)

    def _failed(self, source: str, failure: Exception, failures: int) -> None:
        # A block that is open still may lock the file, or hide the identity that it has given.
        by_block = isinstance(failure, DatabaseBusy | WrongDatabase)
        logged = isinstance(failure, RefusedOpener)
        if not by_block:
            self._stats.count("ways_failed")
        log.log(
            logging.WARNING if failures == 1 and not by_block and not logged else logging.DEBUG,
            "database: the way into %s could not be verified (%s). Blocks go on, but check-backs and outbox rows of it "
            "wait until this process gets a second connection.",
            source,
            failure,
        )

    def _log_nowhere(self, source: str) -> None:
        log.log(
            logging.WARNING if self._databases.nowhere_for(source) is None else logging.DEBUG,
            "database: no second connection finds the barrier of %s. Blocks on it are refused until one does. Give the "
            "client a function that opens one, Client(..., database=open_connection).",
            source,
        )
