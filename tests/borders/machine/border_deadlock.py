"""A real deadlock of MariaDB, which the connection in question loses."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from typing import Any

import pymysql
from border_kinds import Kind, Seat

HEAVY = 100
_DEADLOCK = 1213


def lose_a_deadlock(kind: Kind, seat: Seat) -> bool:
    """Whether the database has undone the transaction of `seat`. The other side has written more, so it is not that
    one, whichever of the two comes to wait for the other last."""
    with closing(kind.plain(seat.place)) as other:
        kind.run(other, "begin")
        kind.run(other, "insert into scratch values " + ", ".join(["('heavy')"] * HEAVY))
        kind.run(other, _take(2))
        kind.run(seat.conn, _take(1))
        waiting = threading.Thread(target=_quietly, args=(kind, other, _take(1)))
        waiting.start()
        try:
            kind.run(seat.conn, _take(2))
        except pymysql.err.OperationalError as failure:
            return failure.args[0] == _DEADLOCK
        finally:
            waiting.join()
            other.rollback()
    return False


def _take(lock: int) -> str:
    return f"update locks set times = times + 1 where id = {lock}"


def _quietly(kind: Kind, conn: Any, sql: str) -> None:
    with suppress(Exception):
        kind.run(conn, sql)
