"""What `Client` and `AsyncClient` have in common: what survives a fork, and what belongs to one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tallystick.barrier.adapters import own_opener
from tallystick.barrier.operations.identity import Whereabouts
from tallystick.barrier.statement import Operation
from tallystick.client import cleanup
from tallystick.client.answering.answerer import Answerer
from tallystick.client.base import forks
from tallystick.client.base.databases import Databases, Door, run_on_new
from tallystick.client.base.settings import Decider, OpenConnection, Settings
from tallystick.client.base.stats import Stats
from tallystick.client.base.workers import Workers
from tallystick.client.connection.brokers import Brokers
from tallystick.client.connection.transport import new_session, shut_session
from tallystick.client.consumers import Consumers
from tallystick.client.transactions.outbox import Outbox
from tallystick.client.transactions.producer import Pinned, Producer
from tallystick.core.errors import TallystickError
from tallystick.core.ids import new_gid, new_member_id
from tallystick.core.ops import Send

log = logging.getLogger("tallystick.client")

# Enough for two hanging questions in each of several databases, while the outbox of another is still driven.
DATABASE_THREADS = 8


class Runtime:
    """Made on the event loop that it belongs to, and used on no other."""

    def __init__(self, settings: Settings, databases: Databases, stats: Stats) -> None:
        self.loop = asyncio.get_running_loop()
        self.member = settings.member or new_member_id()
        self.session = new_session()
        self.brokers = Brokers(settings, self.session, self.member)
        self.producer = Producer(self.brokers, settings, stats)
        self.workers = Workers("tallystick-database", DATABASE_THREADS)
        self.answerer = Answerer(self.brokers, settings, self.member, databases, self.workers, stats)
        self.outbox = Outbox(self.brokers, self.producer, databases, self.workers, stats, settings.timeout)
        # Whose turn it is, among blocks and handlers, to use a synchronous connection on this loop.
        self.turn = asyncio.Lock()
        self.consumers = Consumers(self.brokers, self.member, settings, stats, self.turn)

    async def close(self, timeout: float) -> None:
        """Flush what waits, for at most about `timeout` seconds, and let everything go."""
        await self.consumers.stop(timeout)
        await self.answerer.stop()
        given_up = await self.brokers.close(timeout)
        if given_up:
            log.warning("closed with %d operations unanswered; their outcome is left to the check-back", given_up)
        await self.outbox.stop(timeout)
        await shut_session(self.session)
        self.workers.stop()


T = TypeVar("T")

REDRIVE_SECONDS = 2.0
CLOSE_SECONDS = 5.0


class ClientCore:
    """Settings, known databases and counts; and the runtime of each event loop that the client is used on."""

    def __init__(
        self, settings: Settings, database: OpenConnection | None, deciders: Mapping[str, Decider] | None = None
    ) -> None:
        self.settings = settings
        self.databases = Databases(database, deciders)
        self.stats = Stats()
        self.answering = False
        self.closed = False
        self._latest: Runtime | None = None
        self._runtimes: dict[asyncio.AbstractEventLoop, Runtime] = {}
        forks.watch(self)

    def runtime(self) -> Runtime:
        """The runtime of the running loop, made at its first use."""
        loop = asyncio.get_running_loop()
        latest = self._latest
        if latest is not None and latest.loop is loop:
            return latest
        if self.closed:
            raise TallystickError("the client is closed; make a new one")
        self._latest = self._runtimes.get(loop) or self._new_runtime(loop)
        return self._latest

    def _new_runtime(self, loop: asyncio.AbstractEventLoop) -> Runtime:
        self._runtimes = {old: runtime for old, runtime in self._runtimes.items() if not old.is_closed()}
        runtime = self._runtimes[loop] = Runtime(self.settings, self.databases, self.stats)
        self.answering = self.settings.group is not None and bool(self.databases)
        if self.answering:
            runtime.answerer.start()
        for door in self.databases.outboxes:
            runtime.outbox.drive(door, REDRIVE_SECONDS)
        return runtime

    async def start(self) -> None:
        self.runtime()

    async def close(self, timeout: float) -> None:
        """Close the runtime of the running loop."""
        runtime = self._runtimes.pop(asyncio.get_running_loop(), None)
        self._latest = None
        self.closed = True
        if runtime is not None:
            await runtime.close(timeout)

    def after_fork(self) -> None:
        for runtime in list(self._runtimes.values()):
            forks.never_destroy(runtime)
            forks.never_destroy(runtime.loop)
        self._latest = None
        self._runtimes = {}
        self.answering = False

    async def redrive(self, open_connection: OpenConnection, every: float) -> None:
        self._drive(Door(own_opener(open_connection)), every)

    def _drive(self, door: Door, every: float = REDRIVE_SECONDS) -> None:
        runtime = self.runtime()
        if door not in self.databases.outboxes:
            self.databases.outboxes.append(door)
        runtime.outbox.drive(door, every)

    async def plan_clean_up(self, older_than: float, groups: Sequence[str] | None) -> cleanup.CleanupAges:
        return await cleanup.plan(self.runtime().brokers, older_than, groups, self.settings.timeout)

    # What transaction blocks ask for

    def new_gid(self) -> str:
        latest = self._latest
        return latest.brokers.new_gid() if latest is not None else new_gid()

    async def start_answering(self) -> None:
        self.runtime().answerer.start()
        self.answering = True

    async def learn(self, address: str, here: Whereabouts, door: Door | None) -> str:
        """Remember a way into the barrier that a block has found; its source, "" if there is none."""
        workers, table = self.runtime().workers, self.settings.barrier_table
        return await self.databases.learn(workers, address, here, door, table)

    async def run(self, door: Door, operation: Operation[T]) -> T:
        """Run an operation of the barrier on a connection of its own."""
        return await run_on_new(self.runtime().workers, door, operation)

    async def given_source(self) -> str | None:
        """The name of the database that the client was told of at its start; None if there is none."""
        return await self.databases.given_source(self.runtime().workers, self.settings.barrier_table)

    async def choose_for_outbox(self, source: str, gid: str | None) -> Pinned:
        """Where an outbox row is to be sent. Its re-driver runs before it is there: a commit may be cut off."""
        await self.drive_outbox(source)
        return await self.runtime().producer.choose(gid)

    async def drive_outbox(self, source: str) -> None:
        door = self.databases.door(source)
        if door is not None:
            self._drive(door)

    async def send_outbox_row(self, source: str, pinned: Pinned, op: Send, *, wait: bool) -> None:
        await self.runtime().outbox.send(source, pinned, op, wait=wait)
