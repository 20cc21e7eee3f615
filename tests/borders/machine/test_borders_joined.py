"""Blocks on a connection whose earlier transaction is not what the driver takes it for."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from border_deadlock import lose_a_deadlock
from border_kinds import Kind, Seat
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

import tallystick
from brokers import BrokerProcess


def _plain(kind: Kind) -> tuple[Any, Any]:
    conn = kind.open(0, "autocommit").conn
    return conn, conn


def _over_sqlalchemy(kind: Kind) -> tuple[Any, Any]:
    engine = create_engine("mysql+pymysql://", creator=lambda: _plain(kind)[0], poolclass=NullPool)
    conn = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    return conn, conn.connection.driver_connection


@pytest.mark.mariadb
@pytest.mark.parametrize("opened", [_plain, _over_sqlalchemy])
def test_a_transaction_that_a_deadlock_has_undone_is_not_joined(
    opened: Callable[[Kind], tuple[Any, Any]], broker: BrokerProcess, kind_named: Callable[[str], Kind]
) -> None:
    """The driver goes on to say that it is open. In autocommit mode every statement would then commit by itself."""
    kind = kind_named("pymysql")
    topic = f"topic-{uuid.uuid4().hex}"
    conn, raw = opened(kind)
    with closing(conn), tallystick.Client(broker.url, group=topic, wait=True) as ts:
        for note in ("fails", "works"):
            raw.begin()
            assert lose_a_deadlock(kind, Seat(raw, 0))
            try:
                with ts.transaction(conn) as tx:
                    _note(conn, note)
                    tx.send(topic, note)
                    if note == "fails":
                        raise ValueError("no money")
            except ValueError:
                pass
        queues = range(ts.topic(topic).queues)
        assert [message.value for queue in queues for message in ts.fetch(topic, queue, 0).messages] == [b"works"]
    assert {row for (row,) in kind.select(0, "select note from ledger")} & {"fails", "works"} == {"works"}


def _note(conn: Any, note: str) -> None:
    sql = f"insert into ledger values ('{note}')"
    if hasattr(conn, "cursor"):
        conn.cursor().execute(sql)
    else:
        conn.execute(text(sql))
