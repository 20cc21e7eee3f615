"""Ways in that lead to a pool of the service's own: `pool.acquire`, `pool.getconn`.

A check-back must not wait until the service gives a connection back, and in a forked child the sockets of a pool are
the parent's. So connections of our own are made as the pool makes its.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any


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


# (package, class) of the pool -> the method that hands out a connection, and what makes one
_POOLS: dict[tuple[str, str], tuple[str, Callable[[Any], Any]]] = {
    ("asyncpg", "Pool"): ("acquire", _as_asyncpg),
    ("psycopg_pool", "ConnectionPool"): ("getconn", _as_psycopg),
    ("psycopg_pool", "AsyncConnectionPool"): ("getconn", _as_async_psycopg),
    ("psycopg2", "AbstractConnectionPool"): ("getconn", _as_psycopg2),
}
