"""What `Client` and `AsyncClient` have in common: what survives a fork, and what works on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Mapping, Sequence

from tallystick.barrier.adapters.recognition import own_opener
from tallystick.client import cleanup
from tallystick.client.answering.answerer import Answerer
from tallystick.client.base import forks
from tallystick.client.base.databases import Databases, Door
from tallystick.client.base.deadlines import Deadline
from tallystick.client.base.settings import Decider, OpenConnection, Settings
from tallystick.client.base.stats import Stats
from tallystick.client.base.times import milliseconds, milliseconds_or_none
from tallystick.client.connection.loop_connection import LoopConnection
from tallystick.client.connection.portal import is_closed
from tallystick.client.consumers.running import Consumers
from tallystick.client.transactions.outbox import Outbox
from tallystick.client.transactions.producer import Producer
from tallystick.core.errors import InvalidRequest
from tallystick.core.ids import new_gid

CLOSE_SECONDS = 5.0
FLUSH_SECONDS = 0.3


class Runtime(LoopConnection):
    """A connection, and all the work that is done over it."""

    def __init__(self, settings: Settings, databases: Databases, stats: Stats) -> None:
        super().__init__(settings, databases, stats)
        self.answerer = Answerer(self)
        self.outbox = Outbox(self)
        self.producer = Producer(self, self.outbox, self.answerer.start)
        self.consumers = Consumers(self, self.producer)
        # What needs no transaction of this process: for others of the group, and for those that died.
        if settings.group is not None and databases:
            self.producer.answer_checks()
        for door in list(databases.outboxes):
            self.outbox.drive(door)

    async def close(self, timeout: float) -> None:
        """Stop the consumers, flush what waits and close all connections, within `timeout` seconds.

        If handlers take all of that, the rest gets FLUSH_SECONDS, so that what is committed is still sent.
        """
        deadline, flush = Deadline(timeout), min(timeout, FLUSH_SECONDS)
        await self.consumers.close(deadline.left())
        await self.answerer.stop()
        await self.learning.stop()
        await self.send_the_rest(deadline.left_or(flush))
        await self.outbox.stop(deadline.left_or(flush / 2))
        await self.let_go()


class ClientCore:
    """Settings, known databases and counts; and the runtime of each event loop that the client is used on."""

    def __init__(
        self,
        settings: Settings,
        database: OpenConnection | Sequence[OpenConnection] | None,
        deciders: Mapping[str, Decider] | None = None,
    ) -> None:
        self.settings = settings
        self.databases = Databases(database, deciders)
        self.stats = Stats()
        self.closed = False
        self.latest: Runtime | None = None
        self._runtimes: dict[asyncio.AbstractEventLoop, Runtime] = {}
        forks.watch(self)
        _cores.add(self)

    @property
    def runtimes(self) -> list[Runtime]:
        """Those of all event loops, some of which may have ended without a word."""
        return list(self._runtimes.values())

    def runtime(self) -> Runtime:
        """The runtime of the running loop, made at its first use."""
        loop = asyncio.get_running_loop()
        latest = self.latest
        if latest is not None and latest.loop is loop:
            return latest
        if self.closed:
            raise is_closed()
        self.latest = self._runtimes.get(loop) or self._new_runtime(loop)
        return self.latest

    def handlers_consumers(self) -> Consumers | None:
        """The consumers of the handler that the caller runs in; None if it runs in none."""
        return next((one.consumers for one in self.runtimes if one.consumers.is_current), None)

    def refuse_handlers(self) -> None:
        """InvalidRequest if the caller runs in a handler of this client, which a close would wait for."""
        if self.handlers_consumers() is not None:
            raise InvalidRequest(
                "close: a handler cannot close its own client (the close waits for the handler). Call stop() in the "
                "handler, and close() after the handler has returned."
            )

    def _new_runtime(self, loop: asyncio.AbstractEventLoop) -> Runtime:
        self._runtimes = {old: runtime for old, runtime in self._runtimes.items() if not old.is_closed()}
        runtime = self._runtimes[loop] = Runtime(self.settings, self.databases, self.stats)
        return runtime

    async def open(self) -> Runtime:
        """The runtime, which looks for the brokers in the background. The caller may hold a transaction open."""
        return self.runtime()

    async def start(self) -> Runtime:
        """The runtime, once its first look for the brokers has ended."""
        runtime = self.runtime()
        await runtime.brokers.look()
        return runtime

    async def close(self, timeout: float) -> None:
        """Close the runtime of the running loop."""
        milliseconds(timeout, "timeout")
        runtime = self._runtimes.pop(asyncio.get_running_loop(), None)
        self.latest = None
        self.closed = True
        if runtime is not None:
            await runtime.close(timeout)

    def after_fork(self) -> None:
        for runtime in list(self._runtimes.values()):
            forks.never_destroy(runtime)
            forks.never_destroy(runtime.loop)
        self.latest = None
        self._runtimes = {}
        self.stats.unavailable_since = {}
        self.databases.after_fork()

    def begin(self) -> None:
        """Look for the brokers in the background, if an event loop runs and that was not begun before."""
        if self.latest is None and not self.closed:
            with contextlib.suppress(RuntimeError):  # no loop runs
                self.runtime()

    def new_gid(self, key: str | None = None) -> str:
        latest = self.latest
        return latest.brokers.new_gid(key) if latest is not None else new_gid()

    async def look(self) -> None:
        """Wait for the first look for the brokers, at most for the client's timeout."""
        await self.runtime().brokers.look(self.settings.timeout)

    async def redrive(self, open_connection: OpenConnection, every: float | None) -> None:
        if milliseconds_or_none(every, "every") == 0:
            raise InvalidRequest(
                f"every: the time between two rounds must not be zero (got {every!r}). Give every=1.0.", field="every"
            )
        self.runtime().outbox.drive(Door(own_opener(open_connection, "open_connection")), every)

    async def plan_clean_up(self, older_than: float, groups: Sequence[str] | None) -> cleanup.CleanupAges:
        return await cleanup.plan(self.runtime().brokers, older_than, groups, self.settings.timeout)

    async def given_source(self) -> str | None:
        """The name of the database that the client was told of at its start; None if there is none."""
        return await self.databases.given_source(self.runtime().workers, self.settings.barrier_table)


_cores: weakref.WeakSet[ClientCore] = weakref.WeakSet()


def cores_at(address: str) -> list[ClientCore]:
    """Of all clients in this process that speak to a broker, whoever made them."""
    return [core for core in list(_cores) if not core.closed and address in core.settings.addresses]
