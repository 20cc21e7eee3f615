"""What a driver's connection knows about its transaction, read without asking the server.

One class per engine, used over the plain driver and over SQLAlchemy alike.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from functools import lru_cache
from typing import Any, ClassVar, Protocol
from urllib.parse import quote
from weakref import WeakKeyDictionary

from tallystick.barrier.errors import TransactionLost

_IDLE, _ACTIVE, _IN_ERROR, _UNKNOWN = 0, 1, 3, 4  # libpq's transaction states, the same numbers in every driver
_PSYCOPG2_BEGUN = 2  # its own idea of its state
_IN_TRANSACTION = 1  # a bit of MySQL's server status


class DriverState(Protocol):
    """Reads a driver's connection, `raw`."""

    chains: ClassVar[bool]  # whether the server may begin a transaction by itself where it ends one

    def open(self, raw: Any) -> bool:
        """Whether a transaction is open, as far as the driver knows."""

    def doubt(self, raw: Any) -> str | None:
        """The statement whose answer tells whether a transaction that seems to be open is; None if that is certain."""

    def begin(self, raw: Any) -> str | None:
        """The statement that starts a transaction; None if one is open or starts by itself."""

    def lost(self, raw: Any) -> TransactionLost | None:
        """Why a transaction that was begun cannot be committed; None if it can."""


def begins_next(raw: Any) -> bool:
    """Whether the driver's commit() begins the next transaction: sqlite3 with `autocommit=False` (3.12)."""
    connection = getattr(raw, "_conn", raw)  # aiosqlite holds the sqlite3 connection there
    return isinstance(connection, sqlite3.Connection) and getattr(connection, "autocommit", None) is False


def ended() -> TransactionLost:
    return TransactionLost(
        "the local transaction was ended before its commit: by a commit or rollback inside the block, by a "
        "statement that commits by itself, or by the database after an error",
        rolled_back=False,
    )


def aborted() -> TransactionLost:
    return TransactionLost("the local transaction was aborted by an earlier error, which was ignored", rolled_back=True)


class SqliteState:
    """sqlite3 and aiosqlite."""

    chains: ClassVar[bool] = False

    def open(self, raw: Any) -> bool:
        return bool(raw.in_transaction)

    def doubt(self, raw: Any) -> str | None:
        return None

    def begin(self, raw: Any) -> str | None:
        # At once as a writer: a transaction that read first and then wants to write can be refused half way.
        return None if raw.in_transaction else "begin immediate"

    def lost(self, raw: Any) -> TransactionLost | None:
        return None if raw.in_transaction else ended()


class PostgresState:
    """psycopg and psycopg2."""

    chains: ClassVar[bool] = False

    def open(self, raw: Any) -> bool:
        return _libpq_status(raw) not in (_IDLE, _UNKNOWN)

    def doubt(self, raw: Any) -> str | None:
        return None

    def idle(self, raw: Any) -> bool:
        """Whether there surely is no transaction: not what is said of a connection that is closed."""
        return _libpq_status(raw) == _IDLE

    def busy(self, raw: Any) -> bool:
        """Whether a statement is under way."""
        return _libpq_status(raw) == _ACTIVE

    def begin(self, raw: Any) -> str | None:
        # psycopg2 does not notice that a statement has ended its transaction, and sends no BEGIN for the next one.
        deaf = getattr(raw, "status", None) == _PSYCOPG2_BEGUN
        return "begin" if (raw.autocommit or deaf) and not self.open(raw) else None

    def lost(self, raw: Any) -> TransactionLost | None:
        status = _libpq_status(raw)
        if status == _IN_ERROR:
            # COMMIT would answer with ROLLBACK here, and the driver would call that a success.
            return aborted()
        return ended() if status == _IDLE else None


def _libpq_status(raw: Any) -> int:
    # Asked several times in a transaction; psycopg's `info` makes two objects for each answer, libpq itself none.
    status: int = raw.pgconn.transaction_status if hasattr(raw, "pgconn") else raw.info.transaction_status
    return status


class AsyncpgState:
    """asyncpg, which does not tell an aborted transaction from a good one: the answer to COMMIT does."""

    chains: ClassVar[bool] = False

    def open(self, raw: Any) -> bool:
        return not raw.is_closed() and bool(raw.is_in_transaction())

    def doubt(self, raw: Any) -> str | None:
        return None

    def begin(self, raw: Any) -> str | None:
        # For SQLAlchemy, whose transaction begins by itself; unless it has missed that a statement ended the last one.
        return "begin" if raw._top_xact is not None and not self.open(raw) else None

    def lost(self, raw: Any) -> TransactionLost | None:
        return None if raw.is_closed() or self.open(raw) else ended()


class MysqlState:
    """PyMySQL, aiomysql and asyncmy."""

    chains: ClassVar[bool] = True  # with completion_type=CHAIN

    def open(self, raw: Any) -> bool:
        return bool(raw.server_status & _IN_TRANSACTION)

    def doubt(self, raw: Any) -> str | None:
        # An error brings no status: after one that has undone the transaction (a deadlock) the last one stands.
        return "do 0" if raw.get_autocommit() and self.open(raw) else None

    def begin(self, raw: Any) -> str | None:
        # BEGIN would commit what is open. Without autocommit the next statement begins by itself.
        return "begin" if raw.get_autocommit() and not self.open(raw) else None

    def lost(self, raw: Any) -> TransactionLost | None:
        # Without autocommit the status is not up to date after a select or an error: no ground for a verdict.
        return ended() if raw.get_autocommit() and not self.open(raw) else None


@lru_cache(maxsize=256)
def sqlite_address(path: str) -> str:
    return f"sqlite:{os.path.realpath(path)}" if path else "sqlite::memory:"


_addresses: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Asking libpq for its parameters costs as much as a statement, and every block wants to know."""


def postgres_address(raw: Any) -> str:
    """As it was configured, so that it stays the same when a list of hosts fails over."""
    known = _addresses.get(raw)
    if known is None and hasattr(raw, "_addr"):
        known = _addresses[raw] = _asyncpg_address(raw)
    if known is None:
        info = raw.info
        given = info.get_parameters() if hasattr(info, "get_parameters") else info.dsn_parameters
        host = given.get("host") or info.host
        known = f"{_server('postgresql', host, given.get('port') or info.port)}/{quote(info.dbname, safe='')}"
        _addresses[raw] = known
    return known


def _asyncpg_address(raw: Any) -> str:
    """As psycopg would spell it. Of a list of hosts asyncpg keeps only the one that it is connected to."""
    at = raw._addr
    host, port = at[:2] if isinstance(at, tuple) else at.split("/.s.PGSQL.")
    return f"{_server('postgresql', host, port)}/{quote(raw._params.database, safe='')}"


def mysql_address(raw: Any) -> str:
    """Without the database: that is the schema, which a statement can change."""
    told = getattr(raw, "__dict__", {})
    if not {"unix_socket", "_unix_socket"} & told.keys():
        return _mysqlclient_address(raw)
    path = told.get("unix_socket") or told.get("_unix_socket")
    host, port = told.get("host") or told.get("_host"), told.get("port") or told.get("_port")
    return mysql_server_address(path, host, port)


def _mysqlclient_address(raw: Any) -> str:
    """As the others spell it. mysqlclient reads files of options by itself, and takes "localhost" for a socket."""
    host, _, way = raw.get_host_info().partition(" via ")
    if way.startswith("TCP"):
        return _server("mysql", raw.host or host, raw.port)
    with socket.socket(fileno=os.dup(raw.fileno())) as peer:
        return _server("mysql", str(peer.getpeername()), "")


def mysql_server_address(socket: str | None, host: str | None, port: object) -> str:
    return _server("mysql", socket or host, "" if socket else port)


def _server(engine: str, host: str | None, port: object) -> str:
    return f"{engine}://{quote(host or '', safe='')}:{port or ''}"
