"""Addresses of databases as an operator writes them: sqlite://, postgresql:// and mysql://.

A password never shows: not in an error, not in a representation, and not in the cause of an error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from tallystick.core.errors import ConfigError
from tallystick.core.mysql_urls import WrongOption, mysql_parameters

Engine = Literal["sqlite", "postgresql", "mysql"]

CONNECT_SECONDS = 5
# What a statement may take beyond its wait for a lock, before a server that says nothing is given up.
SLACK_SECONDS = 5

_ENGINES: dict[str, Engine] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}


class _NoPath(Exception):
    """An address of SQLite without the path of a file."""


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """Where a database is and how to come in. `parameters` are those of the engine's driver."""

    engine: Engine
    parameters: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, url: str, named: str, setting: str) -> DatabaseAddress:
        """From `url`; a ConfigError, which does not show its password, if nothing here can connect to it.

        `named` is what the user calls this address, and `setting` the option or setting that it was given to.
        """
        engine = _ENGINES.get(url.partition(":")[0].partition("+")[0])
        if engine is None or "://" not in url:
            raise ConfigError(
                f"{named}: not an address that begins with sqlite://, postgresql:// or mysql://", field=setting
            )
        try:
            return cls(engine, _PARSERS[engine](url))
        except ImportError:
            raise ConfigError(f"{named}: install tallystick[{engine}] to use it", field=setting) from None
        except _NoPath:
            raise ConfigError(f"{named}: sqlite:// and the path of a file", field=setting) from None
        except WrongOption as wrong:
            raise ConfigError(f"{named}: {wrong}", field=setting) from None
        except ValueError:
            # Without its cause, which may show a part of the password.
            raise ConfigError(
                f"{named}: not a valid address; /, @ and : in a password are written as %2F, %40 and %3A",
                field=setting,
            ) from None

    def connect(self, seconds: float) -> Any:
        """A connection of the engine's driver, for statements that wait at most `seconds` for a lock."""
        return _CONNECTORS[self.engine](self.parameters, seconds)


def _parse_sqlite(url: str) -> dict[str, Any]:
    path = unquote(urlsplit(url).path)
    if not path:
        raise _NoPath
    return {"path": path[1:] if path.startswith("//") else path}


def _connect_sqlite(parameters: Mapping[str, Any], _: float) -> Any:
    path = parameters["path"]
    try:
        # Not made if it is missing: an empty one in the place of the real one would only hide that.
        return sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True)
    except sqlite3.OperationalError as error:
        raise sqlite3.OperationalError(f"{error}: {path} (an address of SQLite has an absolute path)") from error


def _parse_postgresql(url: str) -> dict[str, Any]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        return dict(conninfo_to_dict("postgresql" + url[url.index("://") :].replace(" ", "%20")))
    except psycopg.Error:
        raise ValueError from None


def _connect_postgresql(parameters: Mapping[str, Any], seconds: float) -> Any:
    import psycopg
    from psycopg.conninfo import make_conninfo

    # A server that is gone without a word is noticed by what it does not acknowledge.
    patience = {"tcp_user_timeout": int((seconds + SLACK_SECONDS) * 1000), "keepalives_idle": SLACK_SECONDS}
    return psycopg.connect(make_conninfo(**{"connect_timeout": CONNECT_SECONDS, **patience, **parameters}))


def _parse_mysql(url: str) -> dict[str, Any]:
    import pymysql  # noqa: F401  told now, not at the first check, if it is missing

    return mysql_parameters(url)


def _connect_mysql(parameters: Mapping[str, Any], seconds: float) -> Any:
    import pymysql

    patience = seconds + SLACK_SECONDS
    return pymysql.connect(read_timeout=patience, write_timeout=patience, connect_timeout=CONNECT_SECONDS, **parameters)


_PARSERS: dict[Engine, Callable[[str], dict[str, Any]]] = {
    "sqlite": _parse_sqlite,
    "postgresql": _parse_postgresql,
    "mysql": _parse_mysql,
}
_CONNECTORS: dict[Engine, Callable[[Mapping[str, Any], float], Any]] = {
    "sqlite": _connect_sqlite,
    "postgresql": _connect_postgresql,
    "mysql": _connect_mysql,
}
