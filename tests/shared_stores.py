"""Stores on the servers that tests start: one database for a worker's tests, a store of its own for each place."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from urllib.parse import quote

import pytest

from servers import RedisServer, Server
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.opening import SharedStore, open_shared

# engine -> the fixture of its server
FIXTURES = {"postgresql": "postgres", "mysql": "mariadb", "redis": "redis"}
MARKS = {"postgresql": [pytest.mark.postgresql], "mysql": [pytest.mark.mariadb], "redis": []}
IN_SHORT = ("postgresql",)  # has tests in the short run that others have in the full one
SHARED_FULL = [pytest.param(engine, marks=[*MARKS[engine], pytest.mark.full]) for engine in FIXTURES]
SHARED = [pytest.param(name, marks=MARKS[name] + [pytest.mark.full] * (name not in IN_SHORT)) for name in FIXTURES]

CLUSTER_DB = 7  # of Redis, for the tests of whole clusters: their keys have fixed names

_numbers = itertools.count(1)
_urls: dict[str, str] = {}


def url_of(server: Server, database: str, port: int | None = None) -> str:
    """How a store names this server; by another port, if it is to be reached through a proxy."""
    who = f"{server.user}:{quote(server.password, safe='')}"
    return f"{server.engine}://{who}@{server.host}:{port or server.port}/{database}"


def start(engine: str, request: pytest.FixtureRequest) -> None:
    """Make sure that `url_at` knows a server of this kind, if it is one that is shared."""
    if engine in FIXTURES and engine not in _urls:
        server = request.getfixturevalue(FIXTURES[engine])
        _urls[engine] = server.url if isinstance(server, RedisServer) else url_of(server, server.new_database())


def new_place(engine: str, request: pytest.FixtureRequest, port: int | None = None) -> str:
    """Where nothing is yet: a database of its own, for a whole cluster. On Redis, one that is emptied."""
    server: Server | RedisServer = request.getfixturevalue(FIXTURES[engine])
    if not isinstance(server, RedisServer):
        return url_of(server, server.new_database(), port)
    with contextlib.closing(server.connect(db=CLUSTER_DB)) as client:
        client.flushdb()
    return f"redis://{server.host}:{port or server.port}/{CLUSTER_DB}"


def url_at(engine: str) -> str:
    return _urls[engine]


def new_number() -> int:
    """The number of a store that no test has used."""
    return next(_numbers)


def opener(url: str, number: int | None = None) -> Callable[[StoreSettings], SharedStore]:
    """Opens one and the same new store, again and again."""
    chosen = new_number() if number is None else number
    # The servers of tests do not wait for their disk.
    return lambda settings: open_shared(url, chosen, settings, allow_weak_durability=True)
