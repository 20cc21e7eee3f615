"""Recognises a database connection and makes it the same as every other.

A driver's module is imported only once a connection of its kind has been seen, so a service needs
only the drivers that it uses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tallystick.barrier.adapters import (
    inherited_connections,  # noqa: F401 (before any fork: it notes what is open)
    openers,
)
from tallystick.barrier.adapters.base import Adapter, AsyncAdapter, SyncAdapter
from tallystick.barrier.adapters.not_connections import is_known_mistake, mistaken, name_of
from tallystick.barrier.adapters.pools import keeps_no_track, past_pool
from tallystick.barrier.errors import UnsupportedConnection

_HERE = "tallystick.barrier.adapters"

# (package, class) of the connection -> (module, class) of its adapter
_KINDS: dict[tuple[str, str], tuple[str, str]] = {
    ("sqlite3", "Connection"): ("sqlite", "SqliteAdapter"),
    ("aiosqlite", "Connection"): ("aiosqlite", "AioSqliteAdapter"),
    ("psycopg", "Connection"): ("psycopg", "PsycopgAdapter"),
    ("psycopg", "AsyncConnection"): ("psycopg", "AsyncPsycopgAdapter"),
    ("psycopg2", "connection"): ("psycopg2", "Psycopg2Adapter"),
    ("asyncpg", "Connection"): ("asyncpg", "AsyncpgAdapter"),
    ("asyncpg", "PoolConnectionProxy"): ("asyncpg", "AsyncpgAdapter"),
    ("pymysql", "Connection"): ("pymysql", "PyMySQLAdapter"),
    ("MySQLdb", "Connection"): ("mysqlclient", "MysqlclientAdapter"),
    ("mysql", "MySQLConnection"): ("mysql_connector", "MysqlConnectorAdapter"),
    ("mysql", "CMySQLConnection"): ("mysql_connector", "MysqlConnectorAdapter"),
    ("mysql", "PooledMySQLConnection"): ("mysql_connector", "MysqlConnectorAdapter"),
    ("aiomysql", "Connection"): ("aiomysql", "AiomysqlAdapter"),
    ("asyncmy", "Connection"): ("aiomysql", "AsyncmyAdapter"),
    ("peewee", "Database"): ("peewee", "PeeweeAdapter"),
    ("peewee", "DatabaseProxy"): ("peewee", "PeeweeAdapter"),
    ("sqlalchemy", "Connection"): ("sqlalchemy", "SqlAlchemyAdapter"),
    ("sqlalchemy", "Session"): ("sqlalchemy", "SqlAlchemyAdapter"),
    ("sqlalchemy", "AsyncConnection"): ("sqlalchemy", "AsyncSqlAlchemyAdapter"),
    ("sqlalchemy", "AsyncSession"): ("sqlalchemy", "AsyncSqlAlchemyAdapter"),
    ("django", "BaseDatabaseWrapper"): ("django", "django_adapter"),
    ("django", "ConnectionProxy"): ("django", "proxy_adapter"),
}
# Registries that stand for the session of the current thread or task; a call returns it.
_REGISTRIES = {("sqlalchemy", "scoped_session"), ("sqlalchemy", "async_scoped_session")}

_ASYNC_OWNERS = {
    ("asyncpg", "Pool"),
    ("psycopg_pool", "AsyncConnectionPool"),
    ("aiomysql", "Pool"),
    ("asyncmy", "Pool"),
    ("sqlalchemy", "AsyncEngine"),
    ("sqlalchemy", "async_sessionmaker"),
}

_makers: dict[type, Callable[[Any], Adapter]] = {}


def adapt(connection: Any) -> Adapter:
    """The adapter for a connection of any supported driver."""
    kind = type(connection)
    make = _makers.get(kind)
    if make is None:
        make = _makers[kind] = _maker(connection)
    return make(connection)


def _maker(connection: Any) -> Callable[[Any], Adapter]:
    """What makes an adapter of a connection of this type."""
    kinds = _kinds_of(type(connection))
    for kind in kinds:
        if kind in _REGISTRIES:
            return lambda registry: adapt(registry())
        if kind in _KINDS:
            module, name = _KINDS[kind]
            adapter: Callable[[Any], Adapter] = getattr(import_module(f"{_HERE}.{module}"), name)
            return adapter
    mistake = mistaken(connection, kinds)
    if mistake is not None:
        raise mistake
    known = ", ".join(f"{package}.{name}" for package, name in _KINDS)
    raise UnsupportedConnection(
        f"{name_of(type(connection))} is not a supported database connection; supported are {known}"
    )


def adapt_sync(connection: Any) -> SyncAdapter:
    """The adapter for a sync connection; refuses an async one."""
    adapter = adapt(connection)
    if adapter.is_async:
        raise UnsupportedConnection(
            f"{type(connection).__qualname__} is an async connection; use the async client or a sync connection"
        )
    return adapter


def adapt_async(connection: Any) -> AsyncAdapter:
    """The adapter for an async connection; refuses a sync one."""
    adapter = adapt(connection)
    if not adapter.is_async:
        raise UnsupportedConnection(
            f"{type(connection).__qualname__} is a sync connection; use the sync client or an async connection"
        )
    return adapter


def belongs_to_service(given: Any) -> bool:
    """Whether what an opener returned by mistake must stay open: a pool, an engine, a cursor."""
    return is_known_mistake(_kinds_of(type(given)))


def check_opener(given: Any, field: str) -> None:
    """InvalidRequest, with what to give instead, unless the argument may be a function that opens a connection."""
    openers.check_opener(given, field, _kinds_of, _KINDS)


def opens_async(open_connection: Callable[[], Any]) -> bool:
    """Whether a function surely opens asynchronous connections: a coroutine function, a method of an async pool."""
    owner = getattr(open_connection, "__self__", None)
    return inspect.iscoroutinefunction(open_connection) or bool(_ASYNC_OWNERS & set(_kinds_of(type(owner))))


def own_opener(open_connection: Callable[[], Any], field: str = "database") -> Callable[[], Any]:
    """The same way in without a pool of the service's own behind it, where that can be seen: `engine.connect`,
    `pool.acquire`, `pool.getconn`."""
    check_opener(open_connection, field)
    owner = getattr(open_connection, "__self__", None)
    kinds = _kinds_of(type(owner))
    if not {("sqlalchemy", "Engine"), ("sqlalchemy", "AsyncEngine")} & set(kinds):
        return past_pool(owner, open_connection, kinds) or open_connection
    opener: Callable[[], Any] = import_module(f"{_HERE}.sqlalchemy").own_opener(owner, open_connection)
    return opener


def returning_opener(open_connection: Callable[[], Any]) -> Callable[[], Any]:
    """The same way in; its connections may be a pool's, if closing them gives them back to it."""
    owner = getattr(open_connection, "__self__", None)
    return own_opener(open_connection) if keeps_no_track(_kinds_of(type(owner))) else open_connection


def _kinds_of(connection: type) -> list[tuple[str, str]]:
    return [(base.__module__.partition(".")[0], base.__name__) for base in connection.__mro__]
