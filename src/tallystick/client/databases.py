"""The service's own databases: how the client opens a connection of its own to each, and uses it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, TypeVar

from tallystick.barrier.adapters import adapt, adapt_async, adapt_sync
from tallystick.barrier.adapters.base import Adapter
from tallystick.barrier.runner import run_async, run_sync
from tallystick.barrier.statement import Operation

from .settings import OpenConnection
from .workers import Workers

T = TypeVar("T")

GIVEN = ""
"""The source of the one database that the client was told of at its start."""


class Databases:
    """Openers by `source`, the name under which a prepare mentions the database that holds its barrier row.

    Filled by the transactions of this process. The database given at the start stands in for any source that is not
    known: a service with one database answers for members that reached it under another name.
    """

    def __init__(self, given: OpenConnection | None) -> None:
        self._by_source: dict[str, OpenConnection] = {} if given is None else {GIVEN: given}

    def learn(self, adapter: Adapter) -> str | None:
        """Remember how to reach the database behind a connection; its source, or None if there is no other way in."""
        source = adapter.source
        if source not in self._by_source:
            opener = adapter.opener() or self._by_source.get(GIVEN)
            if opener is None:
                return None
            self._by_source[source] = opener
        return source

    def add(self, open_connection: OpenConnection) -> None:
        """Another database that this process looks after."""
        if open_connection not in self._by_source.values():
            self._by_source[f"given:{len(self._by_source)}"] = open_connection

    def opener(self, source: str) -> OpenConnection | None:
        return self._by_source.get(source) or self._by_source.get(GIVEN)

    def openers(self) -> list[OpenConnection]:
        """Every way in, once."""
        return list(dict.fromkeys(self._by_source.values()))


class _Opening:
    """A connection that must be waited for on the event loop."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


async def run_on_new(workers: Workers, open_connection: OpenConnection, operation: Operation[T]) -> T:
    """Run an operation on a connection of its own: on a thread for a synchronous driver, here for the others."""

    def open_and_run() -> T | _Opening:
        connection = open_connection()
        if inspect.isawaitable(connection):
            return _Opening(connection)
        adapter = adapt_sync(connection)
        try:
            return run_sync(adapter, operation)
        finally:
            adapter.close()

    result = await asyncio.wrap_future(workers.submit(lambda _: open_and_run()))
    if not isinstance(result, _Opening):
        return result
    adapter = adapt_async(await result.awaitable)
    try:
        return await run_async(adapter, operation)
    finally:
        await adapter.close()


async def open_adapter(open_connection: OpenConnection) -> Adapter:
    """A connection for use on the event loop, of either kind."""
    connection = open_connection()
    return adapt(await connection if inspect.isawaitable(connection) else connection)
