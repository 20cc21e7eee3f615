"""A local commit whose answer is lost: what it left in the outbox is sent all the same."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pymysql
import pytest
from client_support import Bank, messages_in, values_in

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from tallystick import OutcomeUnknown
from tallystick.client.transactions import outbox

GONE = {
    "sqlite": sqlite3.OperationalError("disk I/O error"),
    "postgresql": psycopg.OperationalError("the connection is lost"),
    "mysql": pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"),
}


class CommitsAndDies(sqlite3.Connection):
    def commit(self) -> None:
        super().commit()
        raise GONE["sqlite"]


def connection_that_loses_the_answer(bank: Bank) -> Any:
    """The commit takes effect, and nobody is told."""
    if bank.engine == "sqlite":
        return sqlite3.connect(bank.path, factory=CommitsAndDies)
    connection = bank.open()
    commit = connection.commit

    def commit_and_die() -> None:
        commit()
        raise GONE[bank.engine]

    connection.commit = commit_and_die
    return connection


@pytest.mark.parametrize("mode", ["outbox", "consumer-dedup"])
def test_the_first_block_of_a_process_may_be_cut_off(
    ts: tallystick.Client,
    broker: BrokerProcess,
    any_bank: Bank,
    topic: str,
    mode: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No block has succeeded yet, and none will: the error promises that the re-driver finds the truth."""
    monkeypatch.setattr(outbox, "LEFT_BEHIND_SECONDS", 0.2)

    def block() -> None:
        with ts.transaction(connection, mode=mode) as tx:
            any_bank.note(connection, "paid")
            tx.send(topic, 1)

    connection = connection_that_loses_the_answer(any_bank)
    with pytest.raises(OutcomeUnknown, match="outbox re-driver"):
        block()
    connection.close()
    assert any_bank.notes() == ["paid"]
    if mode == "outbox":
        eventually(lambda: values_in(broker.url, topic) == [1], "the row is sent")
    else:
        eventually(lambda: "commit" in signs(broker, topic), "consumers are told of the commit")
    eventually(lambda: any_bank.rows("select gid from tallystick_outbox") == [], "and then deleted")


def signs(broker: BrokerProcess, topic: str) -> list[str]:
    return [value for message in messages_in(broker.url, topic) for value in (message.headers or {}).values()]
