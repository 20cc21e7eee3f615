"""Outbox mode: the broker may be away during the local commit, and a process may die after it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time

import msgspec
import pytest
from client_support import Bank, pay, values_in

import tallystick
from brokers import BrokerProcess, running_broker
from eventually import eventually
from hanging_server import hanging_server
from tallystick import errors
from tallystick.barrier import adapt_sync, outbox_put, run_sync
from tallystick.client.transactions import outbox, redriver
from tallystick.core.message import OutgoingMessage


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows count as left behind after a moment."""
    monkeypatch.setattr(outbox, "LEFT_BEHIND_SECONDS", 0.5)


def left(bank: Bank) -> list[str]:
    return [row[0] for row in bank.rows("select gid from tallystick_outbox")]


def put_row(bank: Bank, gid: str, address: str, messages: list[OutgoingMessage]) -> None:
    """What a process leaves that dies right after its local commit."""
    put_rows(bank, address, {gid: messages})


def put_rows(bank: Bank, address: str, rows: dict[str, list[OutgoingMessage]]) -> None:
    with bank.connection() as connection:
        adapter = adapt_sync(connection)
        adapter.begin()
        for gid, messages in rows.items():
            run_sync(adapter, outbox_put(gid, address, msgspec.msgpack.encode(messages)))
        adapter.commit()


def test_a_row_is_gone_once_its_messages_are_there(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str
) -> None:
    pay(ts, any_bank, topic, 1, mode="outbox")
    assert values_in(broker.url, topic) == [1]
    eventually(lambda: left(any_bank) == [])


def test_no_group_is_needed(broker: BrokerProcess, bank: Bank, topic: str) -> None:
    with tallystick.Client(broker.url) as ts:
        pay(ts, bank, topic, 1, mode="outbox")
    assert values_in(broker.url, topic) == [1]


@pytest.mark.fault
@pytest.mark.usefixtures("quick")
def test_the_broker_may_be_away_during_the_local_commit(any_bank: Bank, topic: str) -> None:
    with running_broker(start=False) as broker:
        with tallystick.Client(broker.url, commit_wait=0.1, timeout=0.5) as ts:
            pay(ts, any_bank, topic, 1, mode="outbox")
            assert any_bank.notes() == ["paid"]
            assert len(left(any_bank)) == 1
            time.sleep(0.6)
            broker.start()
            eventually(lambda: left(any_bank) == [])
        assert values_in(broker.url, topic) == [1]


DIES = """
import os, sys, tallystick
from client_support import Bank
from pathlib import Path
import sqlite3
ts = tallystick.Client(sys.argv[1])
connection = sqlite3.connect(sys.argv[2])
with ts.transaction(connection, mode="outbox") as tx:
    connection.execute("insert into ledger values ('paid')")
    tx.send(sys.argv[3], 1)
    commit = tx._block.adapter.commit
    tx._block.adapter.commit = lambda: (commit(), os._exit(9))
"""


@pytest.mark.fault
@pytest.mark.usefixtures("quick")
def test_another_process_sends_what_a_dead_one_left(broker: BrokerProcess, bank: Bank, topic: str) -> None:
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", DIES, broker.url, str(bank.path), topic]
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode == 9
    assert bank.notes() == ["paid"]
    assert len(left(bank)) == 1
    with tallystick.Client(broker.url, database=bank.open):
        eventually(lambda: left(bank) == [])
    assert values_in(broker.url, topic) == [1]


@pytest.mark.usefixtures("quick")
def test_a_row_that_was_sent_but_not_deleted_counts_once(broker: BrokerProcess, any_bank: Bank, topic: str) -> None:
    with tallystick.Client(broker.url) as ts:
        gid, messages = ts.new_gid(), [tallystick.outgoing(topic, 1), tallystick.outgoing(topic, 2)]
        ts.send_many(messages, gid=gid)
        put_row(any_bank, gid, broker.url, messages)
        ts.redrive(any_bank.open, every=0.1)
        eventually(lambda: left(any_bank) == [])
    assert values_in(broker.url, topic) == [1, 2]


@pytest.mark.usefixtures("quick")
def test_several_re_drivers_send_each_row_once(broker: BrokerProcess, any_bank: Bank, topic: str) -> None:
    clients = [tallystick.Client(broker.url, database=any_bank.open) for _ in range(3)]
    for number in range(50):
        put_row(any_bank, clients[0].new_gid(), broker.url, [tallystick.outgoing(topic, number)])
    eventually(lambda: left(any_bank) == [])
    for client in clients:
        client.close()
    assert values_in(broker.url, topic) == list(range(50))


@pytest.mark.usefixtures("quick")
def test_a_row_goes_to_the_broker_that_it_names(broker: BrokerProcess, bank: Bank, topic: str) -> None:
    with running_broker() as other, tallystick.Client(broker.url) as ts:
        put_row(bank, f"own-{topic}", other.url, [tallystick.outgoing(topic, 1)])
        ts.redrive(bank.open, every=0.1)
        eventually(lambda: left(bank) == [])
        assert values_in(other.url, topic) == [1]
    assert values_in(broker.url, topic) == []


@pytest.mark.usefixtures("quick")
def test_a_row_older_than_the_brokers_memory_is_left_to_an_operator(
    broker: BrokerProcess, bank: Bank, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    message = tallystick.outgoing(topic, 1)
    message.born_at -= 7 * 24 * 3600 * 1000
    put_row(bank, f"old-{topic}", broker.url, [message])
    put_row(bank, f"new-{topic}", broker.url, [tallystick.outgoing(topic, 2)])
    with tallystick.Client(broker.url, database=bank.open) as ts:
        eventually(lambda: left(bank) == [f"old-{topic}"])
        time.sleep(1.5)
        assert ts.stats.outbox_too_old == 1
    assert values_in(broker.url, topic) == [2]
    assert len([record for record in caplog.records if "older than broker" in record.message]) == 1


@pytest.mark.usefixtures("quick")
def test_a_row_that_the_broker_refuses_holds_up_nobody(broker: BrokerProcess, bank: Bank, topic: str) -> None:
    bad = tallystick.outgoing(topic, 1)
    bad.topic = "not a topic!"
    put_row(bank, f"bad-{topic}", broker.url, [bad])
    put_row(bank, f"good-{topic}", broker.url, [tallystick.outgoing(topic, 2)])
    with tallystick.Client(broker.url, database=bank.open):
        eventually(lambda: left(bank) == [f"bad-{topic}"])
    assert values_in(broker.url, topic) == [2]


@pytest.mark.fault
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("bad", ["hangs", "refuses"])
@pytest.mark.parametrize("known", [False, pytest.param(True, marks=pytest.mark.full)], ids=["stranger", "configured"])
def test_rows_for_a_broker_that_does_not_answer_hold_up_no_other_rows(
    broker: BrokerProcess,
    any_bank: Bank,
    topic: str,
    bad: str,
    known: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """15 claims are for the bad broker before the first one with a row of the healthy broker."""
    monkeypatch.setattr(redriver, "CLAIM_ROWS", 20)
    caplog.set_level(logging.INFO, "tallystick.client")
    with running_broker(start=False) as other, contextlib.ExitStack() as until_back:
        if bad == "hangs":
            until_back.enter_context(hanging_server(other.port))
        for_other = {f"other-{topic}-{number}": [tallystick.outgoing(topic, number)] for number in range(300)}
        put_rows(any_bank, other.url, for_other)
        time.sleep(0.01)  # the claim takes the oldest rows first, and these are the younger ones
        put_rows(any_bank, broker.url, {f"own-{topic}-{n}": [tallystick.outgoing(topic, n)] for n in range(20)})
        addresses = [broker.url, other.url] if known else [broker.url]
        with tallystick.Client(addresses, database=any_bank.open, timeout=2.0) as ts:
            eventually(lambda: set(left(any_bank)) == set(for_other), "the rows for the healthy broker sent", 25.0)
            assert values_in(broker.url, topic) == list(range(20))
            eventually(lambda: logged_about_rows(caplog, "stay in the outbox"))
            until_back.close()
            other.start()
            eventually(lambda: left(any_bank) == [])
            assert ts.stats.outbox_sent >= 320
        assert values_in(other.url, topic) == list(range(300))
    waited, taken = (logged_about_rows(caplog, f"{other.url} {words}") for words in ("stay in", "takes outbox rows"))
    assert len(waited) == len(taken) > 0, "once for each time that it was away"
    assert logged_about_rows(caplog, "could not be sent") == logged_about_rows(caplog, "is left to") == []


def logged_about_rows(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if "outbox row" in text and words in text]


def test_a_missing_table_is_explained(ts: tallystick.Client, bank: Bank, topic: str) -> None:
    bank.run("drop table tallystick_outbox")
    with pytest.raises(errors.TallystickError, match="create_tables"):
        pay(ts, bank, topic, 1, mode="outbox")
    assert bank.notes() == []
