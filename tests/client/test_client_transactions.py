"""`with ts.transaction(conn)`: the local transaction and its messages happen together or not at all."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from typing import Any

import psycopg
import pytest
from client_support import Bank, messages_in, pay, values_in
from sqlalchemy import create_engine

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from servers import Server
from tallystick import CheckBack, errors
from tallystick.barrier import adapt_sync, decide, run_sync

modes = pytest.mark.parametrize("mode", ["check-back", "outbox"])


@modes
def test_a_block_that_ends_well_changes_the_database_and_sends(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str, mode: Any
) -> None:
    with any_bank.connection() as connection, ts.transaction(connection, mode=mode) as tx:
        any_bank.note(connection, "paid")
        tx.send(topic, {"amount": 30}, key="A", headers={"kind": "transfer"}, tag="money")
        tx.send(topic, {"amount": 40}, key="B")
    assert any_bank.notes() == ["paid"]
    messages = sorted(messages_in(broker.url, topic), key=lambda message: message.sequence)
    assert [message.json() for message in messages] == [{"amount": 30}, {"amount": 40}]
    assert messages[0].headers == {"kind": "transfer"}
    assert (messages[0].key, messages[0].tag, messages[0].gid) == ("A", "money", tx.gid)


@modes
def test_an_exception_in_the_block_undoes_both(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str, mode: Any
) -> None:
    with pytest.raises(ValueError, match="no money"):
        pay(ts, any_bank, topic, 1, mode=mode, fail=ValueError("no money"))
    assert any_bank.notes() == []
    assert messages_in(broker.url, topic) == []


@modes
def test_a_connection_can_be_used_for_one_block_after_another(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str, mode: Any
) -> None:
    with any_bank.connection() as connection:
        for number in range(5):
            failure = KeyError(number) if number == 2 else None
            with contextlib.suppress(KeyError):
                pay(ts, any_bank, topic, number, note=str(number), connection=connection, fail=failure, mode=mode)
    assert any_bank.notes() == ["0", "1", "3", "4"]
    assert values_in(broker.url, topic) == [0, 1, 3, 4]


def test_a_block_without_messages_needs_no_broker(any_bank: Bank) -> None:
    with (
        tallystick.Client("http://127.0.0.1:9", group="g", wait=True) as ts,
        any_bank.connection() as connection,
        ts.transaction(connection),
    ):
        any_bank.note(connection, "alone")
    assert any_bank.notes() == ["alone"]


def test_without_a_broker_nothing_is_committed(bank: Bank, topic: str) -> None:
    with (
        tallystick.Client("http://127.0.0.1:9", group="g", timeout=0.5, wait=True) as ts,
        pytest.raises(errors.BrokerUnavailable),
    ):
        pay(ts, bank, topic, 1)
    assert bank.notes() == []


def test_a_refused_prepare_rolls_back(ts: tallystick.Client, bank: Bank, topic: str) -> None:
    gid = ts.new_gid()
    with pytest.raises(errors.NotAllowed):
        pay(ts, bank, topic, 1, gid=gid, check=CheckBack(url="http://192.0.2.1/check"))
    assert bank.notes() == []
    assert ts.outcome(gid) is None


def test_a_check_back_that_came_first_fails_the_block(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str
) -> None:
    gid = ts.new_gid()
    with any_bank.connection() as other:
        assert run_sync(adapt_sync(other), decide(gid)) == "rolled_back"
    with pytest.raises(errors.TransactionFailed, match="rolled back"):
        pay(ts, any_bank, topic, 1, gid=gid)
    assert any_bank.notes() == []
    eventually(lambda: ts.outcome(gid) == "rolled_back")
    assert messages_in(broker.url, topic) == []


@modes
def test_a_gid_is_used_only_once(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, mode: Any
) -> None:
    gid = pay(ts, bank, topic, 1, gid=ts.new_gid(), mode=mode)
    if mode == "outbox":
        eventually(lambda: bank.rows("select gid from tallystick_outbox") == [])
    with pytest.raises((errors.Conflict, errors.TransactionFailed)):
        pay(ts, bank, topic, 2, gid=gid, note="again", mode=mode)
    assert bank.notes() == ["paid"]
    assert values_in(broker.url, topic) == [1]


def test_values_of_the_transaction_itself_can_be_sent(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str
) -> None:
    """Messages are prepared at the end of the block, when all is known."""
    with bank.connection() as connection, ts.transaction(connection) as tx:
        row = connection.execute("insert into ledger (note) values ('paid') returning rowid").fetchone()[0]
        tx.send(topic, {"row": row, "gid": tx.gid})
    assert messages_in(broker.url, topic)[0].json() == {"row": 1, "gid": tx.gid}


def test_bad_input_is_refused_where_it_is_given(ts: tallystick.Client, bank: Bank) -> None:
    with bank.connection() as connection, ts.transaction(connection) as tx:
        with pytest.raises(errors.InvalidRequest, match="topic"):
            tx.send("not a topic!", 1)
        with pytest.raises(errors.InvalidRequest, match="key"):
            tx.send("topic", 1, key=7)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest, match="cannot be made JSON"):
            tx.send("topic", object())
        with pytest.raises(errors.InvalidRequest, match="not both"):
            tx.send("topic", 1, delay=1, deliver_at=1)
        with pytest.raises(errors.InvalidRequest, match="gid"):
            ts.transaction(connection, gid="no spaces")
        with pytest.raises(errors.InvalidRequest, match="mode"):
            ts.transaction(connection, mode="guess")  # type: ignore[arg-type]
        with pytest.raises(errors.TallystickError, match="not a supported database connection"):
            ts.transaction(object())


# Early prepare


def test_early_prepare_has_the_half_messages_before_the_changes(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str
) -> None:
    with any_bank.connection() as connection, ts.transaction(connection, prepare="early") as tx:
        tx.send(topic, 1)
        tx.prepare()
        assert ts.transaction_state(tx.gid).state == "prepared"
        any_bank.note(connection, "paid")
        with pytest.raises(errors.InvalidRequest, match="prepared already"):
            tx.send(topic, 2)
    assert any_bank.notes() == ["paid"]
    assert values_in(broker.url, topic) == [1]


def _early(ts: tallystick.Client, bank: Bank, topic: str, gid: str, sabotage: Any) -> None:
    with bank.connection() as connection, ts.transaction(connection, prepare="early", gid=gid) as tx:
        tx.send(topic, 1)
        tx.prepare()
        bank.note(connection, "paid")
        sabotage(connection)


def _raise(_: Any) -> None:
    raise ValueError("no money")


def test_early_prepare_is_withdrawn_by_an_exception(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str
) -> None:
    gid = ts.new_gid()
    with pytest.raises(ValueError, match="no money"):
        _early(ts, any_bank, topic, gid, _raise)
    assert any_bank.notes() == []
    eventually(lambda: ts.outcome(gid) == "rolled_back")


def test_a_business_statement_that_ends_the_transaction_is_found_out(
    ts: tallystick.Client, any_bank: Bank, topic: str
) -> None:
    gid = ts.new_gid()
    with pytest.raises(errors.TallystickError, match="ended before its commit"):
        _early(ts, any_bank, topic, gid, lambda connection: connection.rollback())
    assert any_bank.notes() == []
    eventually(lambda: ts.outcome(gid) == "rolled_back")


def _commit_and_raise(connection: Any) -> None:
    connection.commit()
    raise ValueError("too late")


def test_a_block_that_commits_by_itself_and_then_fails_still_sends(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str
) -> None:
    """It must not, but if it does: the mark went with its commit, and what counts is the mark."""
    gid = ts.new_gid()
    with pytest.raises(ValueError, match="too late"):
        _early(ts, any_bank, topic, gid, _commit_and_raise)
    assert any_bank.notes() == ["paid"]
    eventually(lambda: ts.outcome(gid) == "committed")
    assert values_in(broker.url, topic) == [1]


def test_early_prepare_must_not_be_forgotten(ts: tallystick.Client, bank: Bank, topic: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"tx\.prepare"):
        pay(ts, bank, topic, 1, prepare="early")
    assert bank.notes() == []


def test_early_prepare_is_refused_where_it_has_no_meaning(ts: tallystick.Client, bank: Bank) -> None:
    with bank.connection() as connection:
        with ts.transaction(connection) as tx, pytest.raises(errors.InvalidRequest, match="early"):
            tx.prepare()
        with pytest.raises(errors.InvalidRequest, match="prepare"):
            ts.transaction(connection, mode="outbox", prepare="early")


if sys.version_info >= (3, 12):

    @modes
    @pytest.mark.parametrize("autocommit", [True, False])
    def test_each_commit_mode_of_sqlite3_keeps_both_together(
        ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, mode: Any, autocommit: bool
    ) -> None:
        with contextlib.closing(sqlite3.connect(bank.path, timeout=60, autocommit=autocommit)) as connection:
            for number in range(3):
                failure = KeyError(number) if number == 1 else None
                with contextlib.suppress(KeyError):
                    pay(ts, bank, topic, number, note=str(number), connection=connection, fail=failure, mode=mode)
        assert bank.notes() == ["0", "2"]
        assert values_in(broker.url, topic) == [0, 2]

    @modes
    def test_sqlite3_without_autocommit_keeps_both_together_through_sqlalchemy(
        ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, mode: Any
    ) -> None:
        engine = create_engine(f"sqlite:///{bank.path}", connect_args={"autocommit": False})
        with engine.connect() as connection, ts.transaction(connection, mode=mode) as tx:
            connection.exec_driver_sql("insert into ledger values ('paid')")
            tx.send(topic, 1)
        engine.dispose()
        assert (bank.notes(), values_in(broker.url, topic)) == (["paid"], [1])


# Commits that fail for certain


class RefusesToCommit(sqlite3.Connection):
    """The database is busy: this commit surely did not happen."""

    def commit(self) -> None:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error


def test_a_commit_that_surely_failed_is_rolled_back_on_both_sides(
    ts: tallystick.Client, bank: Bank, topic: str
) -> None:
    gid = ts.new_gid()
    connection = sqlite3.connect(bank.path, factory=RefusesToCommit)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        pay(ts, bank, topic, 1, gid=gid, connection=connection, check=CheckBack(after=60))
    assert not connection.in_transaction
    connection.close()
    eventually(lambda: ts.outcome(gid) == "rolled_back")
    assert bank.notes() == []


@pytest.mark.postgresql
def test_a_deferred_constraint_fails_the_commit_on_both_sides(
    ts: tallystick.Client, topic: str, postgres: Server
) -> None:
    bank = Bank("postgresql", postgres)
    bank.run("alter table ledger add constraint late unique (note) deferrable initially deferred")
    bank.run("insert into ledger values ('paid')")
    gid = ts.new_gid()
    with pytest.raises(psycopg.errors.UniqueViolation):
        pay(ts, bank, topic, 1, gid=gid, check=CheckBack(after=60))
    eventually(lambda: ts.outcome(gid) == "rolled_back")
    assert bank.notes() == ["paid"]
