"""What is given by mistake in the place of a connection, and what to give instead."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from tallystick.barrier.errors import UnsupportedConnection

_BLOCK = "with ts.transaction(conn) as tx:"
_ASYNC_BLOCK = "async with ts.transaction(conn) as tx:"

_POOL = "a pool of connections, not a connection; give the block one of its connections: `{code}`"
_CURSOR = "a cursor, not a connection; give the connection that it was made from"
_WAITING = "not a connection yet; enter it, and give what it yields: `{code}`"

# (package, class) of what was given -> (what it is, the code that is right)
_MISTAKES: dict[tuple[str, str], tuple[str, str]] = {
    ("asyncpg", "Pool"): (_POOL, f"async with pool.acquire() as conn: {_ASYNC_BLOCK}"),
    ("asyncpg", "PoolAcquireContext"): (_WAITING, f"async with pool.acquire() as conn: {_ASYNC_BLOCK}"),
    ("psycopg_pool", "ConnectionPool"): (_POOL, f"with pool.connection() as conn: {_BLOCK}"),
    ("psycopg_pool", "AsyncConnectionPool"): (_POOL, f"async with pool.connection() as conn: {_ASYNC_BLOCK}"),
    ("psycopg2", "AbstractConnectionPool"): (_POOL, f"conn = pool.getconn(); {_BLOCK}"),
    ("aiomysql", "Pool"): (_POOL, f"async with pool.acquire() as conn: {_ASYNC_BLOCK}"),
    ("asyncmy", "Pool"): (_POOL, f"async with pool.acquire() as conn: {_ASYNC_BLOCK}"),
    ("mysql", "MySQLConnectionPool"): (_POOL, f"conn = pool.get_connection(); {_BLOCK}"),
    ("sqlalchemy", "Engine"): (_POOL, f"with engine.connect() as conn: {_BLOCK}"),
    ("sqlalchemy", "AsyncEngine"): (_POOL, f"async with engine.connect() as conn: {_ASYNC_BLOCK}"),
    ("sqlalchemy", "sessionmaker"): (
        "what makes sessions, not a session; give one: `{code}`",
        "with make_session() as session: with ts.transaction(session) as tx:",
    ),
    ("sqlalchemy", "async_sessionmaker"): (
        "what makes sessions, not a session; give one: `{code}`",
        "async with make_session() as session: async with ts.transaction(session) as tx:",
    ),
    ("django", "BaseConnectionHandler"): (
        "all of Django's connections; name one: `{code}`",
        'with ts.transaction(connections["default"]) as tx:',
    ),
    ("tortoise", "BaseDBAsyncClient"): (
        "a connection of Tortoise ORM, whose transactions have no place for a block of somebody else; give the block a "
        "connection of the driver itself (asyncpg, aiosqlite, asyncmy)",
        "",
    ),
    ("aiomysql", "_ContextManager"): (_WAITING, f"async with pool.acquire() as conn: {_ASYNC_BLOCK}"),
    ("asyncmy", "_ContextManager"): (_WAITING, f"async with pool.acquire() as conn: {_ASYNC_BLOCK}"),
    ("contextlib", "_GeneratorContextManager"): (_WAITING, f"with pool.connection() as conn: {_BLOCK}"),
    ("contextlib", "_AsyncGeneratorContextManager"): (
        _WAITING,
        f"async with pool.connection() as conn: {_ASYNC_BLOCK}",
    ),
    ("sqlite3", "Cursor"): (_CURSOR, ""),
    ("aiosqlite", "Cursor"): (_CURSOR, ""),
    ("psycopg", "BaseCursor"): (_CURSOR, ""),
    ("psycopg2", "cursor"): (_CURSOR, ""),
    ("asyncpg", "BaseCursor"): (_CURSOR, ""),
    ("pymysql", "Cursor"): (_CURSOR, ""),
    ("MySQLdb", "BaseCursor"): (_CURSOR, ""),
    ("mysql", "MySQLCursorAbstract"): (_CURSOR, ""),
    ("aiomysql", "Cursor"): (_CURSOR, ""),
    ("asyncmy", "Cursor"): (_CURSOR, ""),
    ("django", "CursorWrapper"): (_CURSOR, ""),
    ("builtins", "str"): (
        "a text, not a connection; if it is the address of a database, open it: `{code}`",
        f"conn = psycopg.connect(address); {_BLOCK}",
    ),
    ("builtins", "NoneType"): (
        "nothing, not a connection; perhaps what opens it has no `return`",
        "",
    ),
    ("builtins", "coroutine"): (
        "a coroutine that nobody has awaited; give what it returns: `{code}`",
        f"conn = await open_connection(); {_ASYNC_BLOCK}",
    ),
    ("builtins", "function"): ("a function; give what it returns: `{code}`", f"conn = open_connection(); {_BLOCK}"),
    ("builtins", "method"): ("a method; give what it returns: `{code}`", f"conn = open_connection(); {_BLOCK}"),
}


def mistaken(given: Any, kinds: Iterable[tuple[str, str]]) -> UnsupportedConnection | None:
    """What to tell of something that is known not to be a connection; None if it is not known. `kinds` are those of its
    class and what that is made from."""
    for kind in kinds:
        if kind in _MISTAKES:
            sentence, code = _MISTAKES[kind]
            if inspect.iscoroutine(given):
                given.close()  # it will never be awaited, and this is all that is to be said about it
            return UnsupportedConnection(f"{name_of(type(given))} is {sentence.format(code=code)}")
    return None


def is_known_mistake(kinds: Iterable[tuple[str, str]]) -> bool:
    """Whether this is a known mistake: a pool, an engine or a cursor of the service, for example."""
    return any(kind in _MISTAKES for kind in kinds)


def name_of(kind: type) -> str:
    """As its users know it: with its module, unless it is Python's own."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
