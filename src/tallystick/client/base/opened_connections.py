"""What openers return, adapted. A connection that is not supported is closed, and its opener is left alone for a while.

An opener that returned an unsupported connection once returns one again. Called at the pace of other failures, it would
take a connection from the server or from the service's pool each time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, TypeVar

from tallystick.barrier.adapters.base import Adapter, AsyncAdapter, SyncAdapter
from tallystick.barrier.adapters.recognition import adapt, adapt_async, adapt_sync, belongs_to_service
from tallystick.barrier.errors import UnsupportedConnection
from tallystick.client.base.settings import OpenConnection

log = logging.getLogger("tallystick.client")

A = TypeVar("A", bound=Adapter)

REFUSED_SECONDS = 60.0
"""Minimum time between two calls of an opener that returned an unsupported connection."""
CLOSE_SECONDS = 10.0
_RAW = ("sqlalchemy.pool.base", "_ConnectionFairy")


class RefusedOpener(UnsupportedConnection):
    """The function that opens connections returned an unsupported one. It is called again after 60 s."""

    code = "refused_opener"


class OpenedConnections:
    """Adapts connections, and remembers the openers whose connections were refused. Threads may share it."""

    def __init__(self) -> None:
        self._refused: dict[OpenConnection, tuple[float, str]] = {}

    def check(self, opener: OpenConnection) -> None:
        """RefusedOpener if the opener must not be called yet."""
        refused = self._refused.get(opener)
        if refused is not None and time.monotonic() - refused[0] < REFUSED_SECONDS:
            raise RefusedOpener(refused[1])

    def adapt_sync(self, opener: OpenConnection, connection: Any) -> SyncAdapter:
        """The adapter of a synchronous connection that the opener returned."""
        try:
            return self._accepted(opener, adapt_sync(connection))
        except Exception as failure:
            _close(connection)
            raise self._refusal(opener, failure) from failure

    async def adapt_async(self, opener: OpenConnection, connection: Any) -> AsyncAdapter:
        """The adapter of an asynchronous connection that the opener returned."""
        try:
            return self._accepted(opener, adapt_async(connection))
        except Exception as failure:
            await _close_async(connection)
            raise self._refusal(opener, failure) from failure

    async def adapt(self, opener: OpenConnection, connection: Any) -> Adapter:
        """The adapter of a connection of either kind, used on the event loop."""
        try:
            return self._accepted(opener, adapt(connection))
        except Exception as failure:
            await _close_async(connection)
            raise self._refusal(opener, failure) from failure

    def _accepted(self, opener: OpenConnection, adapter: A) -> A:
        if self._refused:
            self._refused.pop(opener, None)
        return adapter

    def _refusal(self, opener: OpenConnection, failure: Exception) -> RefusedOpener:
        logged = opener in self._refused
        problem = f"the function that opens connections returned an unsupported one: {failure}"
        self._refused[opener] = time.monotonic(), problem
        log.log(
            logging.DEBUG if logged else logging.ERROR,
            "%s. Give a function that returns a supported connection. This one is called again after %g s.",
            problem,
            REFUSED_SECONDS,
        )
        return RefusedOpener(problem)


def _close(given: Any) -> None:
    """On a thread. An opener that is not awaited has nothing open yet for a `close` that must be awaited."""
    closing = _closing(given)
    if isinstance(closing, Coroutine):
        closing.close()


async def _close_async(given: Any) -> None:
    closing = _closing(given)
    if inspect.isawaitable(closing):
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await closing
        except Exception as failure:
            log.debug("closing an unsupported connection: %s", failure)


def _closing(given: Any) -> Any:
    """Close what was refused, and return what `close` returns. The service's own pools and engines stay open."""
    if isinstance(given, Coroutine):
        return given.close()  # it will not be awaited
    if belongs_to_service(given):
        return None
    try:
        if (type(given).__module__, type(given).__name__) == _RAW:
            return _close_raw(given)
        return given.close()
    except Exception as failure:
        log.debug("closing an unsupported connection: %s", failure)
        return None


def _close_raw(fairy: Any) -> Any:
    """SQLAlchemy's `raw_connection()`: that of an async engine is closed in a greenlet."""
    if not fairy._pool._dialect.is_async:
        return fairy.close()
    return import_module("sqlalchemy.util").greenlet_spawn(fairy.close)
