"""What belongs to one event loop of one process: its brokers, its threads, and what the client was told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator
from typing import TypeVar

from tallystick.barrier.operations.identity import Whereabouts
from tallystick.barrier.statement import Operation
from tallystick.client.base.databases import Databases, Door, run_on_new
from tallystick.client.base.learning import Learning
from tallystick.client.base.settings import Settings
from tallystick.client.base.stats import Stats
from tallystick.client.base.tasks import Tasks
from tallystick.client.base.workers import Workers
from tallystick.client.connection.brokers import Brokers
from tallystick.client.connection.waiting import UNCONFIRMED, GivenUp
from tallystick.core.ids import new_member_id

log = logging.getLogger("tallystick.client")

T = TypeVar("T")

# Enough for two hanging questions in each of several databases, while the outbox of another is still driven.
DATABASE_THREADS = 8


_DECIDED_LATER = ("prepare", "part", "commit", "commit_batch", "drop_parts", "rollback", "answers")


class LoopConnection:
    """Made on the event loop that it belongs to. Its coroutines are used on no other."""

    def __init__(self, settings: Settings, databases: Databases, stats: Stats) -> None:
        self.settings = settings
        self.databases = databases
        self.stats = stats
        self.loop = asyncio.get_running_loop()
        self.member = settings.member or new_member_id()
        self.brokers = Brokers(settings, stats, self.member)
        self.workers = Workers("tallystick-database", DATABASE_THREADS)
        self.learning = Learning(databases, self.workers, settings.barrier_table, stats)
        # Whose turn it is, among blocks and handlers, to use a synchronous connection on this loop.
        self.turn = asyncio.Lock()
        self.prepares = False
        """Whether this process has prepared a transaction, whose check-backs it must be allowed to answer."""

        self._tasks = Tasks()
        self._asks_for_limits = False

    async def learn(self, address: str, here: Whereabouts, door: Door | None, patience: float = 0.0) -> str:
        """Take a way into the barrier that a block has found; its source, "" if there is none. See `Learning.learn`."""
        return await self.learning.learn(address, here, door, patience)

    def learn_limits_soon(self) -> None:
        """Have a broker say its limits, without waiting for them. May be called on any thread."""
        if not self._asks_for_limits:
            self._asks_for_limits = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the end of the block says so
                self.loop.call_soon_threadsafe(lambda: self._tasks.start(self._learn_limits()))

    async def _learn_limits(self) -> None:
        try:
            await self.brokers.learn_limits()
        finally:
            self._asks_for_limits = False

    async def run(self, door: Door, operation: Operation[T]) -> T:
        """Run an operation of the barrier on a connection of its own."""
        return await run_on_new(self.workers, door, operation)

    async def send_the_rest(self, timeout: float) -> None:
        """Flush what waits, for at most about `timeout` seconds."""
        given_up = await self.brokers.close(timeout)
        if given_up:
            log.warning("client closed: %s", "; ".join(_consequences(given_up)))

    async def let_go(self) -> None:
        await self._tasks.cancel()
        self.brokers.let_go()
        await asyncio.sleep(0)  # its sockets are closed in the loop's next turn, and the loop may end before that
        self.workers.stop()


_LEFT_TO: list[tuple[str, Collection[str], str]] = [
    ("operation", _DECIDED_LATER, "on transactions unanswered, the outcome is left to the check-back"),
    ("send", ("send",), "unanswered, rows of an outbox stay in their table for the re-driver"),
    ("message", (UNCONFIRMED,), "of level 0 unanswered, may be lost"),
]


def _consequences(given_up: GivenUp) -> Iterator[str]:
    """What becomes of operations that got no answer."""
    known = {kind for _, kinds, _ in _LEFT_TO for kind in kinds}
    others = ("operation", given_up.keys() - known, "of consumers unanswered, their leases end by themselves")
    for noun, kinds, follows in (*_LEFT_TO, others):
        if count := sum(given_up[kind] for kind in kinds):
            yield f"{count} {noun}{'' if count == 1 else 's'} {follows}"
