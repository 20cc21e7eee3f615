"""Asking the database itself: the broker reads the barrier, so a check works with the whole producer fleet down."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from tallystick.barrier import adapt_sync, decide_many, run_sync
from tallystick.core.errors import ConfigError, NotAllowed
from tallystick.core.ops import Answer

log = logging.getLogger("tallystick.broker.databases")


class Databases:
    """The databases an operator named in the configuration. Producers name them; they never see a DSN."""

    def __init__(self, urls: dict[str, str], table: str) -> None:
        self._openers = {name: opener_for(name, url) for name, url in urls.items()}
        self._table = table

    def check(self, name: str, field: str) -> None:
        if name not in self._openers:
            known = ", ".join(sorted(self._openers)) or "none"
            raise NotAllowed(
                f"{field}: no database {name!r} in this broker's configuration (it has: {known})", field=field
            )

    async def ask(self, name: str, gids: list[str], seconds: float) -> dict[str, Answer]:
        return await asyncio.to_thread(self._ask, name, gids, seconds)

    def _ask(self, name: str, gids: list[str], seconds: float) -> dict[str, Answer]:
        connection = self._openers[name]()
        try:
            decided = run_sync(adapt_sync(connection), decide_many(gids, wait=seconds, table=self._table))
        finally:
            connection.close()
        return {gid: "unknown" if said == "running" else said for gid, said in decided.items()}


def opener_for(name: str, url: str) -> Callable[[], Any]:
    """How to connect to `url`; a ConfigError if this broker cannot."""
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    if scheme == "sqlite":
        return lambda: sqlite3.connect(unquote(parts.path)[1:] if parts.path.startswith("//") else unquote(parts.path))
    if scheme in ("postgresql", "postgres"):
        return _postgresql(name, url)
    if scheme in ("mysql", "mariadb"):
        return _mysql(name, url)
    raise ConfigError(
        f"databases.{name}: {scheme!r} is not supported; use sqlite:, postgresql: or mysql:", field="databases"
    )


def _postgresql(name: str, url: str) -> Callable[[], Any]:
    try:
        import psycopg
    except ImportError as error:
        raise ConfigError(f"databases.{name}: install tallystick[postgresql] to use it", field="databases") from error
    dsn = "postgresql" + url[url.index("://") :]
    return lambda: psycopg.connect(dsn, connect_timeout=5)


def _mysql(name: str, url: str) -> Callable[[], Any]:
    try:
        import pymysql
    except ImportError as error:
        raise ConfigError(f"databases.{name}: install tallystick[mysql] to use it", field="databases") from error
    parts = urlsplit(url)
    known: dict[str, Any] = {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": parts.path.lstrip("/"),
        "connect_timeout": 5,
    }
    socket = dict(pair.split("=", 1) for pair in parts.query.split("&") if "=" in pair).get("unix_socket")
    if socket:
        known["unix_socket"] = unquote(socket)
    return lambda: pymysql.connect(**known)
