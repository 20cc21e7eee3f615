"""The service's own databases: how the client opens a connection of its own to each, and uses it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, cast, get_args

from tallystick.barrier.adapters import adapt_async, adapt_sync
from tallystick.barrier.adapters.base import Adapter, AsyncAdapter, SyncAdapter
from tallystick.barrier.errors import BarrierError
from tallystick.barrier.faults import Contention, driver_error
from tallystick.barrier.operations.barrier import Decision
from tallystick.barrier.runner import run_async, run_sync
from tallystick.barrier.statement import Operation
from tallystick.client.settings import Decider, OpenConnection
from tallystick.client.workers import Workers
from tallystick.core.errors import TallystickError
from tallystick.core.names import check_name

T = TypeVar("T")

GIVEN = ""
"""The source of the one database that the client was told of at its start."""


class Databases:
    """Openers by `source`, the name under which a prepare mentions the database that holds its barrier row.

    Filled by the transactions of this process. The database given at the start is opened once, when another process
    asks for a source that is not known here, to learn its own.
    """

    def __init__(self, given: OpenConnection | None, deciders: Mapping[str, Decider] | None = None) -> None:
        self._deciders = {check_name(source, "deciders"): decider for source, decider in (deciders or {}).items()}
        self._by_source: dict[str, OpenConnection] = {} if given is None else {GIVEN: given}
        self._given_named = False
        self.outboxes: list[OpenConnection] = [] if given is None else [given]
        """Ways into the databases whose outbox this process looks after."""

    def learn(self, adapter: Adapter) -> str | None:
        """Remember how to reach the database behind a connection; its source, or None if there is no other way in."""
        source = adapter.source
        if source not in self._by_source:
            opener = adapter.opener() or self._by_source.get(GIVEN)
            if opener is None:
                return None
            self._by_source[source] = opener
        return source

    def opener(self, source: str) -> OpenConnection | None:
        return self._by_source.get(source)

    def decider(self, source: str) -> Decider | None:
        """What answers for a source that is no SQL database."""
        return self._deciders.get(source)

    async def find(self, source: str, workers: Workers) -> OpenConnection | None:
        """The way into a database that another process named; None if this process has not heard of it.

        Never another one in its stead: its barrier has no row of the transaction, and would call that a rollback.
        """
        if source not in self._by_source and GIVEN in self._by_source and not self._given_named:
            given = self._by_source[GIVEN]
            self._by_source.setdefault(await source_of(workers, given), given)
            self._given_named = True
        return self._by_source.get(source)

    def __bool__(self) -> bool:
        return bool(self._by_source or self._deciders)


class DatabaseBusy(TallystickError):
    """Another transaction was in the way in the service's own database; try again in a moment."""

    code = "database_busy"
    retryable = True


class _Opening:
    """A connection that must be waited for on the event loop."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


async def run_on_new(workers: Workers, open_connection: OpenConnection, operation: Operation[T]) -> T:
    """Run an operation on a connection of its own: on a thread for a synchronous driver, here for the others."""
    return await _on_new(
        workers,
        open_connection,
        lambda adapter: run_sync(adapter, operation),
        lambda adapter: run_async(adapter, operation),
    )


async def ask_decider(workers: Workers, decider: Decider, gids: Sequence[str]) -> dict[str, Decision]:
    """What a decider says of each: on a thread, or here if it is asynchronous."""
    if inspect.iscoroutinefunction(decider.decide):
        return {gid: _checked(decider, await decider.decide(gid)) for gid in gids}
    return await asyncio.wrap_future(workers.submit(lambda _: {gid: decide_sync(decider, gid) for gid in gids}))


def decide_sync(decider: Decider, gid: str) -> Decision:
    """What a decider says, where nothing can be awaited."""
    decision = decider.decide(gid)
    if inspect.iscoroutine(decision):
        decision.close()
    return _checked(decider, decision)


def _checked(decider: Decider, said: object) -> Decision:
    """Nothing but these words is an answer; least of all something that happens to be true."""
    for decision in get_args(Decision):
        if said == decision:
            return cast(Decision, decision)
    raise BarrierError(
        f"{type(decider).__name__}.decide() returned {said!r:.200}, not one of {', '.join(get_args(Decision))}; "
        "an asynchronous decider needs an asynchronous handler"
    )


async def source_of(workers: Workers, open_connection: OpenConnection) -> str:
    """The name of the database behind an opener. SQLAlchemy knows it only while a transaction is open."""

    def look(adapter: SyncAdapter) -> str:
        adapter.begin()
        try:
            return adapter.source
        finally:
            adapter.rollback()

    async def look_async(adapter: AsyncAdapter) -> str:
        await adapter.begin()
        try:
            return adapter.source
        finally:
            await adapter.rollback()

    return await _on_new(workers, open_connection, look, look_async)


async def _on_new(
    workers: Workers,
    open_connection: OpenConnection,
    use: Callable[[SyncAdapter], T],
    use_async: Callable[[AsyncAdapter], Awaitable[T]],
) -> T:
    def open_and_use() -> T | _Opening:
        connection = open_connection()
        if inspect.isawaitable(connection):
            return _Opening(connection)
        adapter = adapt_sync(connection)
        try:
            return use(adapter)
        except Exception as failure:
            _raise_if_busy(adapter, failure)
            raise
        finally:
            adapter.close()

    opened = workers.submit(lambda _: open_and_use())
    try:
        result = await asyncio.wrap_future(opened)
    except asyncio.CancelledError:
        opened.add_done_callback(_discard)
        raise
    if not isinstance(result, _Opening):
        return result
    adapter = adapt_async(await result.awaitable)
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
        if inspect.iscoroutine(awaitable):
            awaitable.close()


def _raise_if_busy(adapter: Adapter, failure: Exception) -> None:
    if adapter.dialect.meaning(driver_error(failure)) is Contention:
        raise DatabaseBusy(str(failure)) from failure
