"""The service's own databases: how the client opens a connection of its own to each, and uses it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import unquote

from msgspec import Struct

from tallystick.barrier.adapters.base import CONNECT_SECONDS, Adapter, AsyncAdapter, SyncAdapter
from tallystick.barrier.adapters.pools import arrival
from tallystick.barrier.adapters.recognition import own_opener
from tallystick.barrier.faults import Contention, driver_error
from tallystick.barrier.operations.identity import Whereabouts, ensure_identity
from tallystick.barrier.runner import run_async, run_sync
from tallystick.barrier.statement import Operation
from tallystick.client.base.arguments import checked_deciders, checked_openers
from tallystick.client.base.settings import Decider, OpenConnection
from tallystick.client.base.workers import Workers
from tallystick.core.errors import TallystickError

T = TypeVar("T")
A = TypeVar("A", SyncAdapter, AsyncAdapter)


EXPECT_AFTER = 3
"""So often the same source was found at an address before it is expected there."""


class Door(Struct, frozen=True):
    """A way into a database: what opens a connection, and where that is to look for the tables ("": where it does)."""

    open: OpenConnection
    path: str = ""

    @classmethod
    def into(cls, adapter: Adapter, here: Whereabouts) -> Door | None:
        """A way to where a connection is now; None where there can be only this one."""
        opener = adapter.opener()
        return None if opener is None else cls(opener, here.path)

    def lead(self, adapter: A) -> A:
        if self.path:
            adapter.dialect = adapter.dialect.leading_to(self.path)
        return adapter


class Databases:
    """Doors by `source`, the name under which a prepare mentions the database that holds its barrier row.

    Filled by the transactions of this process. The databases given at the start are opened once, when another process
    asks for a source that is not known here, to learn their own.
    """

    def __init__(
        self,
        given: OpenConnection | Sequence[OpenConnection] | None,
        deciders: Mapping[str, Decider] | None = None,
    ) -> None:
        self._deciders = checked_deciders(deciders)
        self._given = [Door(own_opener(opener)) for opener in checked_openers(given)]
        self._given_sources: dict[Door, str] = {}
        self._by_source: dict[str, Door] = {}
        self._unverified: set[str] = set()
        self._nowhere: dict[str, float] = {}
        self.outboxes: list[Door] = list(self._given)
        """Ways into the databases whose outbox this process looks after."""

        self._last_found: dict[str, tuple[str, int]] = {}  # by address: the source, and how often in a row

    @property
    def given(self) -> Door | None:
        """Into the first database of those that the client was told of at its start."""
        return self._given[0] if self._given else None

    @property
    def all_given(self) -> Sequence[Door]:
        return self._given

    def expected(self, address: str) -> str | None:
        """The source that connections to an address lead to, if that has not changed for a while."""
        source, times = self._last_found.get(address, ("", 0))
        return source if times >= EXPECT_AFTER else None

    def found(self, address: str, source: str) -> None:
        last, times = self._last_found.get(address, ("", 0))
        self._last_found[address] = (source, min(times + 1, EXPECT_AFTER) if source == last else 1)

    def add_outbox(self, door: Door) -> None:
        if door not in self.outboxes:
            self.outboxes.append(door)

    def knows(self, source: str) -> bool:
        return source in self._by_source

    def door(self, source: str) -> Door | None:
        return self._by_source.get(source)

    def decider(self, source: str) -> Decider | None:
        """What answers for a source that is no SQL database."""
        return self._deciders.get(source)

    # Ways that blocks have found: in use from the first block on, verified beside it (`Learning`)

    def take(self, source: str, door: Door) -> None:
        """Use a way that was not verified yet: whatever is asked over it is refused unless it leads to `source`."""
        if source not in self._by_source:
            self._by_source[source] = door
            self._unverified.add(source)

    def settle(self, source: str, door: Door) -> None:
        """The way was verified."""
        self._by_source[source] = door
        self._unverified.discard(source)
        self._nowhere.pop(source, None)

    def drop(self, source: str) -> None:
        """Forget a way that was not verified: the next block begins again with it."""
        if source in self._unverified:
            self._unverified.discard(source)
            self._by_source.pop(source, None)

    def lead_nowhere(self, source: str) -> None:
        """Every way was tried, and led elsewhere."""
        self.drop(source)
        self._nowhere[source] = time.monotonic()

    def nowhere_for(self, source: str) -> float | None:
        """Seconds since it was found that no way leads to a source; None if it was not."""
        since = self._nowhere.get(source)
        return None if since is None else time.monotonic() - since

    def after_fork(self) -> None:
        """What the parent is verifying is verified by the child's own blocks."""
        for source in list(self._unverified):
            self.drop(source)

    async def find(self, source: str, workers: Workers, table: str) -> Door | None:
        """The way into a database that another process named; None if this process has not heard of it.

        Never another one in its stead: its barrier has no row of the transaction, and would call that a rollback.
        """
        if not source:
            return self.given  # prepared by hand, by somebody who knows of only one
        if source in self._by_source:
            return self._by_source[source]
        return await self._find_given(source, workers, table) or self._beside(source)

    async def _find_given(self, source: str, workers: Workers, table: str) -> Door | None:
        """One that cannot be asked for its name now does not keep the others from being found."""
        failed: Exception | None = None
        for door in self._given:
            try:
                if await self._source_of_given(door, workers, table) == source:
                    return door
            except Exception as failure:
                failed = failure
        if failed is not None:
            raise failed
        return None

    def _beside(self, source: str) -> Door | None:
        """A way into another schema of a database that is known; whether it is the right one is seen there."""
        address, _, name = source.rpartition("#")
        schema = unquote(name.rpartition("/")[0])
        ways = {**self._by_source, **{known: door for door, known in self._given_sources.items()}}
        for known, door in ways.items():
            if schema and known.rpartition("#")[0] == address:
                quoted = schema.replace('"', '""')
                return Door(door.open, f'"{quoted}"' if address.startswith("postgresql") else schema)
        return None

    async def given_source(self, workers: Workers, table: str) -> str | None:
        """The name of the (first) database that the client was told of at its start; None if there is none."""
        return None if self.given is None else await self._source_of_given(self.given, workers, table)

    async def _source_of_given(self, door: Door, workers: Workers, table: str) -> str:
        if door not in self._given_sources:
            self._given_sources[door] = await source_of(workers, door, table)
        return self._given_sources[door]

    def __bool__(self) -> bool:
        return bool(self._by_source or self._deciders or self._given)


class DatabaseBusy(TallystickError):
    """Another transaction was in the way in the service's own database; try again in a moment."""

    code = "database_busy"
    retryable = True


class NoSecondConnection(TallystickError):
    """No second connection to the service's own database came in time: its pooler or server gives no more of them."""

    code = "no_second_connection"
    retryable = True


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of work on a second connection; `NoSecondConnection` if it does not come in time."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise NoSecondConnection(
            f"database: no second connection within {seconds:g} s. Raise the limit of connections of its pooler or "
            "server above the number of concurrent blocks."
        ) from None


class Quota(Struct, frozen=True):
    """A kind of work, and how many connections to one database it opens at a time. Each may hang until its driver gives
    up: it must neither keep other kinds waiting, nor take every thread from other databases."""

    name: str
    at_once: int


SHARED = Quota("shared", 3)
LEARNING = Quota("learning", 1)


class _Opening:
    """A connection that must be waited for on the event loop."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


async def run_on_new(workers: Workers, door: Door, operation: Operation[T], quota: Quota = SHARED) -> T:
    """Run an operation on a new connection: on a thread for a synchronous driver, here for the others."""
    return await _on_new(
        workers,
        door,
        quota,
        lambda adapter: run_sync(adapter, operation),
        lambda adapter: run_async(adapter, operation),
    )


async def source_of(workers: Workers, door: Door, table: str) -> str:
    """The name of the database behind a door. SQLAlchemy knows its address only while a transaction is open."""

    def look(adapter: SyncAdapter) -> str:
        here = run_sync(adapter, ensure_identity(table=table))
        adapter.begin()
        try:
            return here.source(adapter.address)
        finally:
            adapter.rollback()

    async def look_async(adapter: AsyncAdapter) -> str:
        here = await run_async(adapter, ensure_identity(table=table))
        await adapter.begin()
        try:
            return here.source(adapter.address)
        finally:
            await adapter.rollback()

    return await _on_new(workers, door, SHARED, look, look_async)


async def _on_new(
    workers: Workers,
    door: Door,
    quota: Quota,
    use: Callable[[SyncAdapter], T],
    use_async: Callable[[AsyncAdapter], Awaitable[T]],
) -> T:
    def open_and_use() -> T | _Opening:
        connection = door.open()
        if inspect.isawaitable(connection):
            return _Opening(connection)
        adapter = door.lead(workers.connections.adapt_sync(door.open, connection))
        try:
            return use(adapter)
        except Exception as failure:
            _raise_if_busy(adapter, failure)
            raise
        finally:
            adapter.close()

    async with workers.turn_at((quota, door.open), quota.at_once) as turn:
        workers.connections.check(door.open)
        opened = workers.submit(lambda _: open_and_use())
        try:
            result = await asyncio.wrap_future(opened)
        except asyncio.CancelledError:
            opened.add_done_callback(_discard)
            turn.lasts_until(opened)  # its thread is taken until the driver gives up
            raise
        if not isinstance(result, _Opening):
            return result
        connection = await within(CONNECT_SECONDS, arrival(result.awaitable))
        adapter = door.lead(await workers.connections.adapt_async(door.open, connection))
        try:
            return await use_async(adapter)
        except Exception as failure:
            _raise_if_busy(adapter, failure)
            raise
        finally:
            await adapter.close()


def _discard(opened: Future[Any]) -> None:
    """Nobody is left to wait for the connection: do not even begin to open it."""
    if not opened.cancelled() and opened.exception() is None and isinstance(opened.result(), _Opening):
        awaitable = opened.result().awaitable
        if isinstance(awaitable, Coroutine):
            awaitable.close()


def _raise_if_busy(adapter: Adapter, failure: Exception) -> None:
    if adapter.dialect.meaning(driver_error(failure)) is Contention:
        raise DatabaseBusy(str(failure)) from failure
