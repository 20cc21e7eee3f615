"""Asking the database itself: the broker reads the barrier, so a check works with the whole producer fleet down."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from tallystick.barrier import adapt_sync, decide_many, run_sync
from tallystick.core.errors import ConfigError, NotAllowed
from tallystick.core.ops import Answer

log = logging.getLogger("tallystick.broker.databases")

T = TypeVar("T")
Opener = Callable[[float], Any]  # given how long a statement may wait for a lock
CONNECT_SECONDS = 5
# What a statement may take beyond its wait for a lock, before a server that says nothing is given up.
SLACK_SECONDS = 5


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
        self.check(name, "check.target")
        return await _on_a_thread(lambda: self._ask(name, gids, seconds))

    def _ask(self, name: str, gids: list[str], seconds: float) -> dict[str, Answer]:
        connection = self._openers[name](seconds)
        try:
            decided = run_sync(adapt_sync(connection), decide_many(gids, wait=seconds, table=self._table))
        finally:
            connection.close()
        return {gid: "unknown" if said == "running" else said for gid, said in decided.items()}


async def _on_a_thread(work: Callable[[], T]) -> T:
    """Run blocking work on a thread of its own. The loop's executor has few, which look-ups of names need as well:
    some databases that hang would use them up, and the end of the process would wait for them."""
    answer: Future[T] = Future()

    def run() -> None:
        answer.set_running_or_notify_cancel()
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="tallystick-database", daemon=True).start()
    return await asyncio.wrap_future(answer)


def opener_for(name: str, url: str) -> Opener:
    """How to connect to `url`; a ConfigError, which does not show its password, if this broker cannot."""
    scheme = url.partition(":")[0].partition("+")[0]
    makers = {
        "sqlite": _sqlite,
        "postgresql": _postgresql,
        "postgres": _postgresql,
        "mysql": _mysql,
        "mariadb": _mysql,
    }
    if scheme not in makers or "://" not in url:
        raise ConfigError(
            f"databases.{name}: not an address that begins with sqlite://, postgresql:// or mysql://",
            field="databases",
        )
    try:
        return makers[scheme](name, url)
    except ValueError:
        # Without its cause, which may show a part of the password.
        raise ConfigError(
            f"databases.{name}: not a valid address; /, @ and : in a password are written as %2F, %40 and %3A",
            field="databases",
        ) from None


def _sqlite(name: str, url: str) -> Opener:
    path = unquote(urlsplit(url).path)
    if not path:
        raise ConfigError(f"databases.{name}: sqlite:// and the path of a file", field="databases")
    path = path[1:] if path.startswith("//") else path
    # Not made if it is missing: an empty one in the place of the real one would only hide that.
    return lambda _: sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True)


def _postgresql(name: str, url: str) -> Opener:
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError as error:
        raise ConfigError(f"databases.{name}: install tallystick[postgresql] to use it", field="databases") from error
    try:
        known: dict[str, Any] = conninfo_to_dict("postgresql" + url[url.index("://") :].replace(" ", "%20"))
    except psycopg.Error:
        raise ValueError from None

    def connect(seconds: float) -> Any:
        # A server that is gone without a word is noticed by what it does not acknowledge.
        patience = {"tcp_user_timeout": int((seconds + SLACK_SECONDS) * 1000), "keepalives_idle": SLACK_SECONDS}
        return psycopg.connect(make_conninfo(**{"connect_timeout": CONNECT_SECONDS, **patience, **known}))

    return connect


def _mysql(name: str, url: str) -> Opener:
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
        "connect_timeout": CONNECT_SECONDS,
    }
    socket = dict(pair.split("=", 1) for pair in parts.query.split("&") if "=" in pair).get("unix_socket")
    if socket:
        known["unix_socket"] = unquote(socket)

    def connect(seconds: float) -> Any:
        patience = seconds + SLACK_SECONDS
        return pymysql.connect(read_timeout=patience, write_timeout=patience, **known)

    return connect
