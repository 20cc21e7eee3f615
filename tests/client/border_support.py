"""A service's database over each driver that a block may be given, behind one face."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import mysql.connector.abstracts
import MySQLdb
import psycopg2
import pytest
from client_support import Bank
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

# name -> engine and, for SQLAlchemy, its driver
KINDS = {
    "sqlite3": ("sqlite", ""),
    "sqlite3-autocommit": ("sqlite", ""),
    "core-sqlite": ("sqlite", "sqlite"),
    "orm-sqlite": ("sqlite", "sqlite"),
    "psycopg": ("postgresql", ""),
    "psycopg-autocommit": ("postgresql", ""),
    "core-psycopg": ("postgresql", "postgresql+psycopg"),
    "core-psycopg-autocommit": ("postgresql", "postgresql+psycopg"),
    "orm-psycopg": ("postgresql", "postgresql+psycopg"),
    "core-psycopg2": ("postgresql", "postgresql+psycopg2"),
    "orm-psycopg2": ("postgresql", "postgresql+psycopg2"),
    "psycopg2": ("postgresql", ""),
    "psycopg2-autocommit": ("postgresql", ""),
    "pymysql": ("mysql", ""),
    "pymysql-autocommit": ("mysql", ""),
    "core-pymysql": ("mysql", "mysql+pymysql"),
    "orm-pymysql": ("mysql", "mysql+pymysql"),
    "mysqlclient": ("mysql", ""),
    "mysqlclient-autocommit": ("mysql", ""),
    "mysql-connector": ("mysql", ""),
    "orm-mysqldb": ("mysql", "mysql+mysqldb"),
}
MYSQL_DRIVERS = tuple(kind for kind, (engine, _) in KINDS.items() if engine == "mysql" and "pymysql" not in kind)
# A driver of each engine, and a session of SQLAlchemy; the others are left to the full tests.
COMMON_KINDS = ("sqlite3", "psycopg", "pymysql", "orm-psycopg")
_MARKS = {"sqlite": [], "postgresql": [pytest.mark.postgresql], "mysql": [pytest.mark.mariadb]}


def kinds(*names: str) -> Any:
    return pytest.mark.parametrize("kind", [_param(name) for name in names or KINDS])


def _param(name: str) -> Any:
    marks = _MARKS[KINDS[name][0]]
    return pytest.param(name, marks=marks if name in COMMON_KINDS else [*marks, pytest.mark.full])


class Open:
    """One connection or session."""

    def __init__(self, connection: Any, bank: Bank) -> None:
        self.connection = connection
        self.bank = bank
        self._alchemy = hasattr(connection, "get_bind") or hasattr(connection, "exec_driver_sql")

    def execute(self, sql: str) -> Any:
        if self._alchemy:
            return self.connection.execute(text(sql))
        connector = isinstance(self.connection, mysql.connector.abstracts.MySQLConnectionAbstract)
        cursor = self.connection.cursor(**({"buffered": True} if connector else {}))
        cursor.execute(sql)
        return cursor

    def note(self, note: str) -> None:
        self.execute(f"insert into ledger (note) values ('{note}')")

    def raw(self) -> Any:
        """The driver's own connection."""
        if not self._alchemy:
            return self.connection
        core = self.connection.connection() if isinstance(self.connection, Session) else self.connection
        return core.connection.driver_connection


@contextlib.contextmanager
def opened(bank: Bank, kind: str) -> Iterator[Open]:
    with opener(bank, kind) as open_connection, contextlib.closing(open_connection()) as connection:
        yield Open(connection, bank)


@contextlib.contextmanager
def opener(bank: Bank, kind: str) -> Iterator[Callable[[], Any]]:
    """What opens connections of a kind; whoever has one closes it."""
    _, driver = KINDS[kind]
    autocommit = kind.endswith("-autocommit")
    if driver:
        options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        engine = create_engine(bank.url(driver), poolclass=NullPool, **options)
        yield (lambda: Session(engine)) if kind.startswith("orm-") else engine.connect
        engine.dispose()
    elif kind.startswith("sqlite3"):
        level = None if autocommit else "DEFERRED"
        yield lambda: sqlite3.connect(bank.path, isolation_level=level, timeout=10)
    elif kind in MYSQL_DRIVERS:
        connect = MySQLdb.connect if kind.startswith("mysqlclient") else mysql.connector.connect
        yield lambda: connect(**bank.parameters(), autocommit=autocommit)
    else:
        opens = (lambda: psycopg2.connect(**bank.parameters())) if kind.startswith("psycopg2") else bank.open
        yield lambda: _set_autocommit(opens()) if autocommit else opens()


def _set_autocommit(connection: Any) -> Any:
    if callable(getattr(connection, "autocommit", None)):
        connection.autocommit(True)  # PyMySQL
    else:
        connection.autocommit = True  # psycopg, psycopg2
    return connection
