"""What is supported, with the versions that the tests run with: those of the lock file, beside the oldest that an extra
takes."""

from __future__ import annotations

import re
import tomllib

from doc_pages import ROOT
from doc_tables import table

# package -> (what it is used as, page, extra that names it)
_DATABASES = {
    "psycopg": ("`psycopg.Connection`, `AsyncConnection`, its pools", "../how-to/produce.md", "postgresql"),
    "psycopg2-binary": ("connections of psycopg2 and of its pools", "sql.md#supported-connections", "psycopg2"),
    "asyncpg": ("connections of asyncpg and of its pool", "../how-to/with-asyncpg.md", "asyncpg"),
    "pymysql": ("`pymysql.Connection`", "../how-to/produce.md", "mysql"),
    "mysqlclient": ("`MySQLdb.Connection`", "sql.md#supported-connections", "mysqlclient"),
    "mysql-connector-python": ("`mysql.connector`, in C or not", "sql.md#supported-connections", "mysql-connector"),
    "aiomysql": ("connections of aiomysql and of its pool", "sql.md#supported-connections", "aiomysql"),
    "asyncmy": ("connections of asyncmy and of its pool", "sql.md#supported-connections", "asyncmy"),
    "aiosqlite": ("`aiosqlite.Connection`", "sql.md#supported-connections", "aiosqlite"),
    "sqlalchemy": ("connections and sessions, over each of these", "../how-to/with-sqlalchemy.md", "sqlalchemy"),
    "sqlmodel": ("its sessions are SQLAlchemy's", "../how-to/with-sqlalchemy.md", ""),
    "peewee": ("`peewee.Database`", "../how-to/with-peewee.md", "peewee"),
    "redis": ("a barrier in Redis", "../how-to/redis.md", "redis"),
    "pymongo": ("a barrier in MongoDB", "../how-to/mongodb.md", "mongodb"),
}
_FRAMEWORKS = {
    "django": ("`tallystick.django`: blocks in the ORM's transactions", "../how-to/with-django.md", "django"),
    "fastapi": ("`tallystick.fastapi`: lifespan, dependencies", "../how-to/with-fastapi.md", "fastapi"),
    "flask": ("`tallystick.flask`: `init_app`, commands", "../how-to/with-flask.md", "flask"),
    "celery": ("tasks as producers", "../how-to/with-celery.md", ""),
    "pytest": ("fixtures, a broker in memory, crashes", "../how-to/test-your-code.md", "testing"),
    "pydantic": ("models as values of messages", "../how-to/typed-messages.md", ""),
    "pyspark": ("source, sink and jobs", "../tutorial/spark-pipeline.md", "spark"),
}


def databases() -> str:
    return _versions(_DATABASES)


def frameworks() -> str:
    return _versions(_FRAMEWORKS)


def _versions(known: dict[str, tuple[str, str, str]]) -> str:
    rows = []
    for package, (used, page, extra) in known.items():
        oldest = _oldest(package, extra) if extra else ""
        rows.append((package, used, _tested(package), oldest, f"`{extra}`" if extra else "", f"[page]({page})"))
    return table(("package", "used as", "tested with", "from", "extra", ""), rows)


def _tested(package: str) -> str:
    pinned = (ROOT / "requirements.lock").read_text() + (ROOT / "scripts" / "setup").read_text()
    found = re.search(rf"^(?:MYSQLCLIENT=)?{re.escape(package)}(?:\[[^]]*\])?==([\w.]+)", pinned, re.MULTILINE)
    assert found, f"{package} is in no lock"
    return found[1]


def _oldest(package: str, extra: str) -> str:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = [re.fullmatch(rf"{re.escape(package)}(?:\[[^]]*\])?>=(.+)", one) for one in extras[extra]]
    return next(one[1] for one in found if one)
