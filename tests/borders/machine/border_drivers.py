"""The drivers' own connections, with a commit that can be cut off: before it, after it, or by the process's end."""

from __future__ import annotations

import sqlite3
from typing import Any, Literal

import psycopg
import psycopg2.extensions
import pymysql
from pymysql.connections import Connection as PyMySQLConnection

Fault = Literal["died", "lost before", "lost after"]
FAULTS: tuple[Fault, ...] = ("died", "lost before", "lost after")


class Died(BaseException):
    """The process is killed here: nothing that follows in it is done."""


class _CutCommits:
    """`fault` is what becomes of the next commit; `fired` says that it has happened. The connection is gone then."""

    fault: Fault | None = None
    fired: Fault | None = None
    lost: Exception

    def commit(self) -> None:
        fault, self.fault = self.fault, None
        if fault != "lost before":
            super().commit()  # type: ignore[misc]
        if fault is None:
            return
        self.fired = fault
        self.close()  # type: ignore[attr-defined]
        raise Died if fault == "died" else self.lost


class CutSqlite(_CutCommits, sqlite3.Connection):
    lost = sqlite3.OperationalError("disk I/O error")
    shut = False

    def close(self) -> None:
        self.shut = True
        super().close()


class CutPsycopg(_CutCommits, psycopg.Connection[Any]):
    lost = psycopg.OperationalError("server closed the connection unexpectedly")


class CutPsycopg2(_CutCommits, psycopg2.extensions.connection):  # type: ignore[misc]
    lost = psycopg2.OperationalError("server closed the connection unexpectedly")


class CutPyMySQL(_CutCommits, PyMySQLConnection):  # type: ignore[misc,type-arg]
    lost = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
