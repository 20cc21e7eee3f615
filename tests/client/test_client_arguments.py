"""Arguments that no client can use are refused where they are given, with what to give instead."""

from __future__ import annotations

import contextlib
import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiomysql
import aiosqlite
import asyncmy.connection
import asyncmy.pool
import asyncpg
import mysql.connector.pooling
import peewee
import psycopg
import psycopg2.extensions
import psycopg2.pool
import psycopg_pool
import pymongo
import pymysql
import pytest
import redis
import sqlalchemy
from MySQLdb.connections import Connection as MysqlclientConnection
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

import tallystick
from brokers import BrokerProcess, running_broker
from tallystick import AsyncClient, CallsNotFinished, CheckBack, Client, outgoing, outgoing_call
from tallystick.barrier import create_tables
from tallystick.barrier.redis import RedisDecider
from tallystick.client import handlers
from tallystick.core.errors import Conflict, InvalidRequest, NotFound, TallystickError
from tallystick.fastapi import Tallystick as ForFastApi
from tallystick.flask import Tallystick as ForFlask

URL = "http://127.0.0.1:9"


def bare(kind: Any) -> Callable[[], Any]:
    """An object of the driver's class that was never connected: its class is what is recognised."""
    never_closed = type(kind)(kind.__name__, (kind,), {"__del__": lambda self: None})
    return lambda: never_closed.__new__(never_closed)


def closed() -> sqlite3.Connection:
    """Its class is all that counts, and an open one would be a warning when it is collected."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        return connection


CONNECTIONS: dict[str, Callable[[], Any]] = {
    "sqlite3": closed,
    "aiosqlite": bare(aiosqlite.Connection),
    "psycopg": bare(psycopg.Connection),
    "psycopg async": bare(psycopg.AsyncConnection),
    "psycopg2": bare(psycopg2.extensions.connection),
    "asyncpg": bare(asyncpg.Connection),
    "asyncpg pool": bare(asyncpg.pool.PoolConnectionProxy),
    "pymysql": lambda: pymysql.Connection(defer_connect=True),
    "mysqlclient": bare(MysqlclientConnection),
    "mysql.connector": bare(mysql.connector.MySQLConnection),
    "mysql.connector pool": bare(mysql.connector.pooling.PooledMySQLConnection),
    "aiomysql": bare(aiomysql.Connection),
    "asyncmy": bare(asyncmy.connection.Connection),
    "peewee": lambda: peewee.SqliteDatabase(":memory:"),
    "sqlalchemy": bare(sqlalchemy.Connection),
    "sqlalchemy session": orm.Session,
    "sqlalchemy async": bare(sqlalchemy_asyncio.AsyncConnection),
    "sqlalchemy async session": bare(sqlalchemy_asyncio.AsyncSession),
}
POOLS: dict[str, tuple[Callable[[], Any], str]] = {
    "asyncpg": (bare(asyncpg.Pool), "pool.acquire"),
    "psycopg": (lambda: psycopg_pool.ConnectionPool(open=False), "pool.getconn"),
    "psycopg null": (lambda: psycopg_pool.NullConnectionPool(open=False), "pool.getconn"),
    "psycopg async": (bare(psycopg_pool.AsyncConnectionPool), "pool.getconn"),
    "psycopg2": (lambda: psycopg2.pool.SimpleConnectionPool(0, 1), "pool.getconn"),
    "aiomysql": (bare(aiomysql.Pool), "pool.acquire"),
    "asyncmy": (bare(asyncmy.pool.Pool), "pool.acquire"),
    "mysql.connector": (bare(mysql.connector.pooling.MySQLConnectionPool), "pool.get_connection"),
    "sqlalchemy": (lambda: sqlalchemy.create_engine("sqlite://"), "engine.connect"),
    "sqlalchemy async": (
        lambda: sqlalchemy_asyncio.create_async_engine("sqlite+aiosqlite://"),
        "engine.connect",
    ),
}


def yields_one() -> Iterator[sqlite3.Connection]:
    yield sqlite3.connect(":memory:")


async def yields_one_async() -> AsyncIterator[sqlite3.Connection]:
    yield sqlite3.connect(":memory:")


@contextlib.contextmanager
def entered() -> Iterator[sqlite3.Connection]:
    yield sqlite3.connect(":memory:")


def needs_a_path(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path)


FUNCTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "generator": (lambda: yields_one, "yields a connection"),
    "async generator": (lambda: yields_one_async, "yields a connection"),
    "context manager": (lambda: entered, "yields a connection"),
    "entered": (entered, "context manager"),
    "needs an argument": (lambda: needs_a_path, "needs path"),
    "pool.connection": (lambda: psycopg_pool.ConnectionPool(open=False).connection, "pool.getconn"),
    "engine.begin": (lambda: sqlalchemy.create_engine("sqlite://").begin, "engine.connect"),
    "engine.raw_connection": (lambda: sqlalchemy.create_engine("sqlite://").raw_connection, "engine.connect"),
    "a text": (lambda: "postgresql://127.0.0.1/shop", "got str"),
    "a number": (lambda: 5, "got int"),
}
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    **{f"connection: {name}": (make, "open connection is not a function") for name, make in CONNECTIONS.items()},
    **{f"pool: {name}": mistake for name, mistake in POOLS.items()},
    **{f"function: {name}": mistake for name, mistake in FUNCTIONS.items()},
}


def _subscribe(given: Any) -> None:
    client = AsyncClient(URL, group="shop")

    @client.subscribe("orders", exactly_once=given)
    async def handle(message: tallystick.Message, conn: Any) -> None: ...


def _redrive(given: Any) -> None:
    with Client(URL, group="shop") as client:
        client.redrive(given)


PLACES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Client": ("database", lambda given: Client(URL, group="shop", database=given)),
    "AsyncClient": ("database", lambda given: AsyncClient(URL, group="shop", database=given)),
    "a list": ("database", lambda given: AsyncClient(URL, group="shop", database=[given])),
    "FastAPI": ("database", lambda given: ForFastApi(URL, database=given)),
    "Flask": ("database", lambda given: ForFlask(database=given)),
    "subscribe": ("exactly_once", _subscribe),
    "redrive": ("open_connection", _redrive),
    "handlers.asgi": ("open_connection", handlers.asgi),
    "handlers.wsgi": ("open_connection", handlers.wsgi),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_does_not_open_connections_is_refused_with_what_does(mistake: str) -> None:
    make, said = MISTAKES[mistake]
    with pytest.raises(InvalidRequest) as caught:
        AsyncClient(URL, group="shop", database=make())
    assert caught.value.field == "database"
    assert said in str(caught.value)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_open_connection_is_refused_wherever_a_function_is_wanted(place: str) -> None:
    field, give = PLACES[place]
    with contextlib.closing(sqlite3.connect(":memory:")) as connection, pytest.raises(InvalidRequest) as caught:
        give(connection)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: an open connection is not a function that opens one (got sqlite3.")


def _async_factory() -> Any:
    return sqlalchemy_asyncio.create_async_engine("sqlite+aiosqlite://").connect


class Opener:
    """An object that is called."""

    def __call__(self) -> sqlite3.Connection:
        return sqlite3.connect(":memory:")


WAYS: dict[str, Callable[[], Any]] = {
    "function": lambda: lambda: sqlite3.connect(":memory:"),
    "default arguments": lambda: lambda path=":memory:": sqlite3.connect(path),
    "object": Opener,
    "asyncpg": lambda: bare(asyncpg.Pool)().acquire,
    "psycopg": lambda: psycopg_pool.ConnectionPool(open=False).getconn,
    "psycopg2": lambda: psycopg2.pool.SimpleConnectionPool(0, 1).getconn,
    "aiomysql": lambda: bare(aiomysql.Pool)().acquire,
    "mysql.connector": lambda: bare(mysql.connector.pooling.MySQLConnectionPool)().get_connection,
    "engine": lambda: sqlalchemy.create_engine("sqlite://").connect,
    "async engine": _async_factory,
    "sessionmaker": lambda: orm.sessionmaker(sqlalchemy.create_engine("sqlite://")),
    "scoped session": lambda: orm.scoped_session(orm.sessionmaker(sqlalchemy.create_engine("sqlite://"))),
    "async sessionmaker": sqlalchemy_asyncio.async_sessionmaker,
    "list": lambda: [lambda: sqlite3.connect(":memory:"), sqlalchemy.create_engine("sqlite://").connect],
    "nothing": lambda: None,
    "empty list": list,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_way_in_is_taken(way: str) -> None:
    AsyncClient(URL, group="shop", database=WAYS[way]())


class Answers:
    def decide(self, gid: str) -> str:
        return "committed"


@pytest.mark.parametrize(
    ("deciders", "said"),
    [
        (lambda: {"stock": Answers.decide}, "Give an object with a method decide"),
        (lambda: {"stock": Answers}, "Give an object with a method decide"),
        (lambda: {"stock": redis.Redis()}, "Give RedisDecider(...)"),
        (lambda: {"stock": pymongo.MongoClient(connect=False)}, "Give MongoDecider(...)"),
        (lambda: {"stock": closed()}, "got sqlite3.Connection"),
        (lambda: Answers(), "a mapping of sources to deciders"),
        (lambda: {"not a name": Answers()}, "deciders"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_decides_nothing_is_refused(deciders: Callable[[], Any], said: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(InvalidRequest) as caught:
            make(URL, group="shop", deciders=deciders())
        assert caught.value.field == "deciders"
        assert said in str(caught.value)


def test_deciders_are_taken() -> None:
    AsyncClient(URL, group="shop", deciders={"stock": Answers(), "redis": RedisDecider(redis.Redis())})  # type: ignore[dict-item]


async def _prepare(**options: Any) -> None:
    async with AsyncClient(URL, group="shop", timeout=0.2) as client:
        await client.prepare("g", [], **options)


def _transaction(**options: Any) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        AsyncClient(URL, group="shop").transaction(connection, **options)


WRONG: list[tuple[Mapping[str, Any], str]] = [
    ({"check": lambda gid: "committed"}, "check: it must be a CheckBack"),
    ({"check": "http://127.0.0.1/check"}, "check: it must be a CheckBack"),
    ({"check": CheckBack(url="http://127.0.0.1/check", database="shop")}, "give url or database"),
    ({"check": CheckBack(after="soon")}, "check_after"),  # type: ignore[arg-type]
    ({"check": CheckBack(url="nonsense")}, "check.url"),
    ({"check_after": "soon"}, "check_after"),
    ({"wait": 5}, "wait: it must be True or False (got 5)"),
    ({"member": print}, "member"),
    ({"member": ""}, "member"),
    ({"max_in_flight": "6"}, "max_in_flight"),
    ({"group": print}, "group"),
    ({"urls": print}, "urls"),
    ({"barrier_table": "a b"}, "table"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_an_argument_of_the_wrong_kind_is_refused_at_once(make: Any, options: Mapping[str, Any], said: str) -> None:
    with pytest.raises(TallystickError) as caught:
        make(**{"urls": URL, **options})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"check": print}, "check: it must be a CheckBack"),
        ({"wait": 5}, "wait: it must be True or False (got 5)"),
        ({"call_options": {"max_attempts": 5}}, "call_options: it must be CallOptions"),
        ({"mode": print}, "mode"),
        ({"gid": print}, "gid"),
    ],
)
def test_so_is_one_of_a_block(options: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _transaction(**options)
    assert said in str(caught.value)


async def test_so_is_one_of_an_operation() -> None:
    with pytest.raises(InvalidRequest, match="check: it must be a CheckBack"):
        await _prepare(check=print)
    with pytest.raises(InvalidRequest, match="call_options: it must be CallOptions"):
        await _prepare(call_options=print)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tags": "new"}, "tags: a list of texts"),
        ({"tags": [1]}, "tags: a list of texts"),
        ({"start": "newest"}, "start: it must be one of earliest, latest (got 'newest')"),
        ({"on_trimmed": "fail"}, "on_trimmed: it must be one of stop, skip"),
        ({"mode": "none"}, "mode: it must be one of check-back"),
        ({"by": print}, "by: it must be one of inbox, offset"),
    ],
)
@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_so_is_one_of_a_subscription(make: Any, options: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make(URL, group="shop").subscribe("orders", **options)(lambda message: None)
    assert said in str(caught.value)


@pytest.mark.parametrize("make", [lambda: Client(URL, group="shop"), lambda: AsyncClient(URL, group="shop"), ForFlask])
def test_subscribe_without_parentheses_is_refused(make: Callable[[], Any]) -> None:
    def handle(message: tallystick.Message) -> None: ...

    with pytest.raises(InvalidRequest, match=r"got the function handle\)\. Write @ts\.subscribe\(\"orders\"\)"):
        make().subscribe(handle)


def test_what_is_no_function_is_no_handler() -> None:
    with pytest.raises(InvalidRequest, match="handler: a function is needed"):
        Client(URL, group="shop").subscribe("orders")("handle")


async def open_async() -> aiosqlite.Connection:
    return await aiosqlite.connect(":memory:")


@pytest.mark.parametrize("make", [Client, AsyncClient])
@pytest.mark.parametrize("way", [lambda: open_async, _async_factory])
def test_an_async_connection_for_a_plain_handler_is_refused(make: Any, way: Callable[[], Any]) -> None:
    with pytest.raises(InvalidRequest, match="exactly_once: it opens an async connection"):
        make(URL, group="shop").subscribe("orders", exactly_once=way())(lambda message, conn: None)


def test_every_argument_that_takes_a_function_is_looked_at() -> None:
    """A new one must be added to the tests above."""
    taken = {
        name
        for function in (Client, Client.subscribe, Client.redrive)
        for name, parameter in inspect.signature(function).parameters.items()
        if any(word in str(parameter.annotation) for word in ("OpenConnection", "Decider", "Callable", "CheckBack"))
    }
    assert taken == {"database", "deciders", "check", "exactly_once", "open_connection"}


# --- every parameter of every method ----------------------------------------------------------------------------------

OFFSETS = {0: 0}
RIGHT: dict[str, dict[str, Any]] = {
    "new_gid": {},
    "prepare": {"gid": "g-1", "messages": []},
    "prepare_part": {"part": "p-1", "messages": [], "gid": "g-1"},
    "commit": {"gid": "g-1"},
    "rollback": {"gid": "g-1"},
    "transaction_state": {"gid": "g-1"},
    "outcome": {"gid": "g-1"},
    "poll_checks": {"group": "shop", "wait": 0.0},
    "answer_checks": {"answers": {}},
    "send": {"topic": "orders", "value": 1},
    "send_many": {"messages": [outgoing("orders", 1)]},
    "fetch": {"topic": "orders", "queue": 0, "offset": 0},
    "receive": {"topic": "orders", "group": "shop"},
    "ack": {"group": "shop", "messages": []},
    "nack": {"group": "shop", "messages": []},
    "renew": {"group": "shop", "messages": []},
    "offsets": {"group": "shop", "topic": "orders"},
    "commit_offsets": {"group": "shop", "topic": "orders", "offsets": OFFSETS},
    "reset_group": {"group": "shop", "topic": "orders", "to": "earliest"},
    "topics": {},
    "topic": {"name": "orders"},
    "create_topic": {"name": "orders"},
    "info": {},
    "call": {"url": "http://127.0.0.1:9/"},
    "send_calls": {"calls": [outgoing_call("http://127.0.0.1:9/")]},
    "calls": {"gid": "g-1"},
    "redrive": {"open_connection": lambda: sqlite3.connect(":memory:")},
    "stop": {},
    "close": {},
    "clean": {"connection": None, "older_than": 1.0},
    "transaction": {"connection": None},
    "subscribe": {"topic": "orders"},
}
WRONG_KINDS: list[Any] = [object(), "x y", 0.5, -1, [1], {"a": 1}, b"x"]
UNCHECKED = {"value", "body", "connection", "type"}
"""Parameters that may be anything, or are checked by the adapters of the drivers."""


SAID_AS = {"name": "topic", "protocol": "calls", "offsets": "to", "at": "to"}
"""Other names of a parameter in errors."""


def test_the_methods_above_are_all_that_there_are() -> None:
    public = {name for name, one in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert public - RIGHT.keys() == {"after_fork", "start", "run"}


@pytest.mark.parametrize(
    ("use", "field"),
    [
        (lambda client: client.redrive(lambda: sqlite3.connect(":memory:"), every=0), "every"),
        (lambda client: client.subscribe("orders", ordered="x")(print_message), "ordered"),
        (lambda client: client.subscribe("orders", batch="x")(print_message), "batch"),
        (lambda client: client.fetch("orders", "0", 0), "queue"),
        (lambda client: client.fetch("orders", 0, "0"), "offset"),
        (lambda client: client.answer_checks(None), "answers"),
        (lambda client: client.answer_checks({"g": "done"}), "answers"),
        (lambda client: client.reset_group("shop", "orders"), "to"),
        (lambda client: client.topics(broker=5), "broker"),
        (lambda client: Client(URL, barrier_table=1), "barrier_table"),  # type: ignore[arg-type]
    ],
    ids=range(10),
)
def test_it_is_refused_before_anything_is_asked(use: Callable[[Any], Any], field: str) -> None:
    with Client(URL, group="shop", timeout=0.2) as client, pytest.raises(InvalidRequest) as caught:
        use(client)
    assert (caught.value.field, str(caught.value).startswith(f"{field}: ")) == (field, True), str(caught.value)


def print_message(message: tallystick.Message) -> None: ...


@pytest.fixture(scope="module")
def own_broker() -> Iterator[BrokerProcess]:
    with running_broker() as broker, Client(broker.url) as client:
        client.create_topic("orders", queues=1)
        yield broker


@pytest.mark.parametrize("method", RIGHT)
def test_every_argument_of_a_wrong_kind_is_taken_or_refused_with_its_name(
    method: str, own_broker: BrokerProcess, database: Path
) -> None:
    names = [name for name in inspect.signature(getattr(Client, method)).parameters if name not in ("self", *UNCHECKED)]
    tried = [(name, wrong) for name in names for wrong in WRONG_KINDS]
    with Client(own_broker.url, group="shop") as client:
        found = [_wrongly(client, method, name, wrong, database) for name, wrong in tried]
    assert [said for said in found if said] == []


def _wrongly(client: Client, method: str, name: str, wrong: Any, database: Path) -> str:
    """What was raised for the argument, unless that names it."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        given = {**RIGHT[method], name: wrong}
        if "connection" in given:
            given["connection"] = connection
        try:
            made = getattr(client, method)(**given)
            if method == "subscribe":
                made(lambda message: None)
        except (NotFound, Conflict, CallsNotFinished):  # the argument was taken
            return ""
        except InvalidRequest as refused:
            field = (refused.field or "").partition("[")[0].partition(".")[0]
            return "" if field in (name, SAID_AS.get(name)) else f"{name}={wrong!r}: {field}: {refused}"
        except Exception as failure:
            return f"{name}={wrong!r}: {failure!r}"
    return ""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arguments") / "shop.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        create_tables(connection)
    return path
