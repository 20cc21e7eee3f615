"""Openers that lead to a pool of the service: `pool.acquire`, `pool.getconn`.

A check-back must not wait until the service gives a connection back, and in a forked child the sockets of a pool are
the parent's. So connections of our own are made as the pool makes its.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

# Packages whose connections do not know their pool. The awaitable of `pool.acquire()` does.
_KNOWN_BY_AWAITABLE = {"aiomysql", "asyncmy"}

_owners: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The pools of such connections, from `pool.acquire()` to `release`."""


def past_pool(owner: Any, open_connection: Callable[[], Any], kinds: list[tuple[str, str]]) -> Callable[[], Any] | None:
    """What opens connections as the pool `owner` does, for a method of its that hands them out; None for all else."""
    for kind in kinds:
        if kind in _POOLS:
            method, connect = _POOLS[kind]
            return partial(connect, owner) if getattr(open_connection, "__name__", "") == method else None
    return None


def keeps_no_track(kinds: list[tuple[str, str]]) -> bool:
    """Whether the connections of the pool do not know where they belong, so that they could not be given back."""
    return ("psycopg2", "AbstractConnectionPool") in kinds


async def arrival(opening: Awaitable[Any]) -> Any:
    """Wait for a connection, and note its pool if only the awaitable knows it."""
    pool = getattr(opening, "_pool", None) if type(opening).__name__ == "_PoolAcquireContextManager" else None
    connection = await opening
    if pool is not None and type(opening).__module__.partition(".")[0] in _KNOWN_BY_AWAITABLE:
        _owners[connection] = pool
    return connection


def owner_of(connection: Any) -> Any:
    """The noted pool of a connection; None if it has none."""
    return _owners.get(connection)


def is_lent(pool: Any, connection: Any) -> bool:
    """Whether a noted pool still waits for the connection. If not, it may be another task's."""
    return connection in pool._used or connection in pool._terminated


def release(pool: Any, connection: Any) -> None:
    """Give a connection back to its noted pool, open or closed."""
    _owners.pop(connection, None)
    pool.release(connection)
    # aiomysql wakes no waiter if the connection is closed, although its place is free now. The result is not awaited:
    # the pool may hold its lock for as long as a server keeps another connection attempt waiting.
    waking = asyncio.get_running_loop().create_task(pool._wakeup())
    waking.add_done_callback(_retrieved)


def _retrieved(waking: asyncio.Task[None]) -> None:
    if not waking.cancelled():
        waking.exception()


def _as_asyncpg(pool: Any) -> Any:
    return import_module("tallystick.barrier.adapters.asyncpg").connect_as(pool)


def _as_psycopg2(pool: Any) -> Any:
    return import_module("psycopg2").connect(*pool._args, **pool._kwargs)


def _as_psycopg(pool: Any) -> Any:
    given, options = (value() if callable(value) else value for value in (pool.conninfo, pool.kwargs))
    return pool.connection_class.connect(given, **(options or {}))


async def _as_async_psycopg(pool: Any) -> Any:
    values = [value() if callable(value) else value for value in (pool.conninfo, pool.kwargs)]
    given, options = [await value if inspect.isawaitable(value) else value for value in values]
    return await pool.connection_class.connect(given, **(options or {}))


def _as_mysql(package: str, pool: Any) -> Any:
    return import_module(package).connect(**{"echo": pool._echo, **pool._conn_kwargs})


# (package, class) of the pool -> the method that hands out a connection, and what makes one
_POOLS: dict[tuple[str, str], tuple[str, Callable[[Any], Any]]] = {
    ("asyncpg", "Pool"): ("acquire", _as_asyncpg),
    ("psycopg_pool", "ConnectionPool"): ("getconn", _as_psycopg),
    ("psycopg_pool", "AsyncConnectionPool"): ("getconn", _as_async_psycopg),
    ("psycopg2", "AbstractConnectionPool"): ("getconn", _as_psycopg2),
    ("aiomysql", "Pool"): ("acquire", partial(_as_mysql, "aiomysql")),
    ("asyncmy", "Pool"): ("acquire", partial(_as_mysql, "asyncmy")),
}
