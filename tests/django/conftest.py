"""Django in the tests' own process: the shop's settings, and its databases on each engine.

With STOREFRONT_DRIVERS=older it uses psycopg2, and PyMySQL in the place of mysqlclient: a process can have only one
of each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import django
import pymysql
import pytest
from django.conf import settings
from storefront import settings as of_the_shop


def _use_older_drivers() -> None:
    pymysql.version_info = (2, 2, 1, "final", 0)  # as old as Django wants it
    pymysql.install_as_MySQLdb()
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "psycopg"}
    sys.modules.update(dict.fromkeys([*hidden, "psycopg"]))

    del sys.modules["psycopg"]
    sys.modules.update(hidden)


# Not by the environment: processes that other tests start would find it there.
if not settings.configured:
    settings.configure(**{name: getattr(of_the_shop, name) for name in dir(of_the_shop) if name.isupper()})
    if os.environ.get("STOREFRONT_DRIVERS") == "older":
        _use_older_drivers()
    django.setup()

from django_support import Place, Shop, new_place, new_shop  # noqa: E402 (they need the settings)

ENGINES = [
    "sqlite",
    pytest.param("postgresql", marks=[pytest.mark.postgresql, pytest.mark.full]),
    pytest.param("mysql", marks=[pytest.mark.mariadb, pytest.mark.full]),
]


def _place(engine: str, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Place:
    if engine == "sqlite":
        return new_place(factory.mktemp("storefront") / "shop.db")
    return new_place(request.getfixturevalue({"postgresql": "postgres", "mysql": "mariadb"}[engine]))


@pytest.fixture(scope="module", params=ENGINES)
def any_shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The shop on each engine in turn, with a broker in memory."""
    with new_shop({"default": _place(request.param, request, tmp_path_factory)}) as shop:
        yield shop


@pytest.fixture(scope="module")
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The same on SQLite."""
    with new_shop({"default": _place("sqlite", request, tmp_path_factory)}) as shop:
        yield shop


@pytest.fixture
def two_places(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Place]:
    return {alias: _place("sqlite", request, tmp_path_factory) for alias in ("default", "warehouse")}
