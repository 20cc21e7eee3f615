"""Batches on every driver; and what the code of one handler may do to the transaction that it shares with others."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest
from border_support import KINDS, MYSQL_DRIVERS, Open, kinds, opener
from client_support import Bank, values_in
from test_client_borders_ended import ENDS, lose_a_deadlock

import tallystick
from brokers import BrokerProcess
from eventually import eventually

bys = pytest.mark.parametrize("by", ["inbox", "offset"])

NAMES = [f"{number:02}" for number in range(12)]
BATCH = 6


@pytest.fixture
def bank(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    engine = KINDS[kind][0]
    server = {"postgresql": "postgres", "mysql": "mariadb"}.get(engine)
    return Bank(engine, request.getfixturevalue(server) if server else tmp_path / "bank.db")


def consume(broker: BrokerProcess, bank: Bank, kind: str, topic: str, group: str, by: Any, handle: Any) -> int:
    """All messages by batches; how many of these were undone."""
    with opener(bank, kind) as open_connection, contextlib.ExitStack() as stack:
        # mysqlclient does not tell its password, and what a handler sends must be checkable.
        given = {"database": open_connection} if kind.startswith("mysqlclient") else {}
        ts = stack.enter_context(tallystick.Client(broker.url, group=group, **given))
        ts.create_topic(topic, queues=1)
        ts.send_many([tallystick.outgoing(topic, name) for name in NAMES])
        ts.subscribe(topic, exactly_once=open_connection, by=by, batch=BATCH, concurrency=1)(handle)
        ts.start()
        eventually(lambda: set(NAMES) <= set(bank.notes()), "each effect is there")
        eventually(lambda: ts.offsets(group, topic).lag == 0, "and nothing is left to do")
        ts.stop()
        return ts.stats.batches_undone


@kinds()
@bys
@pytest.mark.parametrize("fails", [False, True])
def test_batches_on_every_driver(
    broker: BrokerProcess, bank: Bank, kind: str, topic: str, group: str, by: Any, fails: bool
) -> None:
    left = ["03"] if fails else []

    def handle(message: tallystick.Message, connection: Any) -> None:
        Open(connection, bank).note(message.text)
        if message.text in left:
            raise KeyError(left.pop())

    assert consume(broker, bank, kind, topic, group, by, handle) == fails
    assert bank.notes() == NAMES


@kinds()
@bys
@pytest.mark.parametrize("end", list(ENDS))
def test_a_handler_that_ends_the_transaction_of_its_batch(
    broker: BrokerProcess, bank: Bank, kind: str, topic: str, group: str, by: Any, end: str
) -> None:
    left = [ENDS[end][0]]

    def handle(message: tallystick.Message, connection: Any) -> None:
        conn = Open(connection, bank)
        conn.note(message.text)
        if message.text == "03" and left:
            left.pop()(conn)

    # By offset it is noticed as well by the next message, which does not find the offset where the last one left it.
    assert consume(broker, bank, kind, topic, group, by, handle) <= 1
    assert bank.notes() == NAMES


@kinds("pymysql", "pymysql-autocommit", "orm-pymysql", *MYSQL_DRIVERS)
@bys
def test_a_handler_that_swallows_a_deadlock_in_its_batch(
    broker: BrokerProcess, bank: Bank, kind: str, topic: str, group: str, by: Any
) -> None:
    """The database has undone all of the batch so far, and a driver in autocommit mode does not know it."""
    attempts = itertools.count(1)

    def handle(message: tallystick.Message, connection: Any) -> None:
        conn = Open(connection, bank)
        if message.text == "03" and next(attempts) == 1:
            lose_a_deadlock(conn)
            return
        conn.note(message.text)

    consume(broker, bank, kind, topic, group, by, handle)
    assert bank.notes() == NAMES


@kinds()
@bys
def test_a_handler_that_commits_takes_nothing_from_what_those_beside_it_have_sent(
    broker: BrokerProcess, bank: Bank, kind: str, topic: str, group: str, by: Any
) -> None:
    """What a handler sends goes out at the end of its transaction, which is that of others only where none of them can
    end it before."""
    left = ["03"]

    def handle(message: tallystick.Message, connection: Any, tx: tallystick.TransactionBase) -> None:
        conn = Open(connection, bank)
        conn.note(message.text)
        tx.send(f"{topic}.sent", int(message.text))
        if message.text in left:
            left.clear()
            conn.commit()

    consume(broker, bank, kind, topic, group, by, handle)
    assert bank.notes() == NAMES
    others = {int(name) for name in NAMES} - {3}
    eventually(lambda: others <= set(values_in(broker.url, f"{topic}.sent")), "what the others have sent")
