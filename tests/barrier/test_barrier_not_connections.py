"""What is given in the place of a connection is called by its name, with the code that is right."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import aiomysql.pool
import asyncmy.pool
import asyncpg
import mysql.connector.pooling
import psycopg2.pool
import psycopg_pool
import pytest
from django.db import ConnectionHandler
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from tortoise.backends.sqlite.client import SqliteClient

from tallystick.barrier import UnsupportedConnection, adapt
from tallystick.barrier.adapters.recognition import own_opener
from tallystick.core.errors import InvalidRequest


async def never_awaited() -> None: ...


@contextlib.contextmanager
def entered_by_nobody() -> Iterator[None]:
    yield


def closed_cursor() -> sqlite3.Cursor:
    """Its class is all that counts, and an open connection would be a warning when it is collected."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        return connection.cursor()


def bare(kind: type) -> Callable[[], Any]:
    """One that was not set up: what it is tells by its class alone."""
    return lambda: kind.__new__(kind)


ACQUIRE = r"async with pool\.acquire\(\) as conn: async with ts\.transaction\(conn\) as tx:"
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "asyncpg pool": (bare(asyncpg.Pool), ACQUIRE),
    "asyncpg acquire": (lambda: asyncpg.Pool.acquire(bare(asyncpg.Pool)()), ACQUIRE),
    "psycopg pool": (lambda: psycopg_pool.ConnectionPool(open=False), r"with pool\.connection\(\) as conn: with ts"),
    "null pool": (lambda: psycopg_pool.NullConnectionPool(open=False), r"with pool\.connection\(\) as conn: with ts"),
    "async pool": (bare(psycopg_pool.AsyncConnectionPool), r"async with pool\.connection\(\) as conn: async with"),
    "psycopg2 pool": (lambda: psycopg2.pool.SimpleConnectionPool(0, 1), r"pool\.getconn\(\)"),
    "aiomysql pool": (bare(aiomysql.pool.Pool), ACQUIRE),
    "asyncmy pool": (bare(asyncmy.pool.Pool), ACQUIRE),
    "mysql.connector pool": (bare(mysql.connector.pooling.MySQLConnectionPool), r"pool\.get_connection\(\)"),
    "engine": (lambda: create_engine("sqlite://"), r"with engine\.connect\(\) as conn: with ts"),
    "async engine": (lambda: create_async_engine("sqlite+aiosqlite://"), r"async with engine\.connect\(\) as conn"),
    "sessionmaker": (sessionmaker, r"with make_session\(\) as session: with ts\.transaction\(session\)"),
    "async sessionmaker": (async_sessionmaker, r"async with make_session\(\) as session: async with ts"),
    "Django's connections": (ConnectionHandler, r'connections\["default"\]'),
    "Tortoise": (bare(SqliteClient), "connection of the driver itself"),
    "cursor": (closed_cursor, "give the connection that it was made from"),
    "address": (lambda: "postgresql://127.0.0.1/service", r"^str is a text.*psycopg\.connect\(address\)"),
    "nothing": (lambda: None, "has no `return`"),
    "coroutine": (never_awaited, "nobody has awaited"),
    "function": (lambda: never_awaited, r"give what it returns: `conn = open_connection\(\)"),
    "context manager": (entered_by_nobody, "give what it yields"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_mistake_is_told_with_the_code_that_is_right(mistake: str) -> None:
    make, said = MISTAKES[mistake]
    given = make()
    with pytest.raises(UnsupportedConnection, match=said) as caught:
        adapt(given)
    assert type(given).__qualname__ in str(caught.value)


@pytest.mark.parametrize("given", ["asyncpg pool", "psycopg pool", "engine", "address", "nothing"])
def test_what_does_not_open_connections_is_refused_as_a_way_in(given: str) -> None:
    with pytest.raises(InvalidRequest, match=r"database: .*`database=(pool|engine)\."):
        own_opener(MISTAKES[given][0]())
