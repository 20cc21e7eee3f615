"""Answers that are lost and commits that nobody knows of: the truth is found, and never guessed."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from client_support import Bank, pay, values_in
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import tallystick
from brokers import BrokerProcess, running_broker
from cutting_proxy import lossy_proxy
from eventually import eventually, eventually_equal
from raw_client import RawClient
from tallystick import CheckBack, errors
from tallystick.barrier import adapt_sync, create_tables, run_sync
from tallystick.barrier.operations.identity import ensure_identity
from tallystick.core.ids import new_gid
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Check, Prepare

# How an operation of that kind looks in a request: its name as msgpack.
PREPARE, COMMIT = b"\xa7prepare", b"\xa6commit"


def test_a_lost_commit_does_not_fail_the_block_and_is_finished_by_the_check_back(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str
) -> None:
    with (
        lossy_proxy(broker.port) as proxy,
        tallystick.Client(proxy.url, group=group, commit_wait=0.2, timeout=0.5, wait=True) as ts,
    ):
        proxy.refusing = COMMIT
        pay(ts, any_bank, topic, 1)
        assert any_bank.notes() == ["paid"]
        eventually_equal(lambda: values_in(broker.url, topic), [1])
    assert proxy.cut >= 1


def test_a_lost_prepare_is_repeated_and_counts_once(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    with lossy_proxy(broker.port) as proxy, tallystick.Client(proxy.url, group=group, wait=True) as ts:
        proxy.losing, proxy.lose_at_most = PREPARE, 2
        pay(ts, bank, topic, 1)
    assert proxy.cut == 2
    assert bank.notes() == ["paid"]
    assert values_in(broker.url, topic) == [1]


def test_an_unanswered_prepare_rolls_back_on_both_sides(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str
) -> None:
    with lossy_proxy(broker.port) as proxy, tallystick.Client(proxy.url, group=group, timeout=0.5, wait=True) as ts:
        gid = ts.new_gid()
        proxy.losing = PREPARE
        with pytest.raises(errors.BrokerUnavailable, match="may have acted"):
            pay(ts, any_bank, topic, 1, gid=gid)
        assert any_bank.notes() == []
        # Until the circuit closes again, questions fail at once.
        eventually(lambda: ts.outcome(gid) == "rolled_back", ignoring=(errors.BrokerUnavailable,))


@pytest.mark.fault
def test_the_block_returns_although_the_broker_dies_after_the_local_commit(
    any_bank: Bank, topic: str, group: str
) -> None:
    with (
        running_broker(check_after="300ms") as broker,
        tallystick.Client(broker.url, group=group, commit_wait=0.3, wait=True) as ts,
    ):
        gid = ts.new_gid()
        with any_bank.connection() as connection, ts.transaction(connection, gid=gid) as tx:
            any_bank.note(connection, "paid")
            tx.send(topic, 1)
            _kill_at_local_commit(tx, broker)
        assert any_bank.notes() == ["paid"]
        assert not broker.running
        broker.restart()
        eventually(lambda: ts.outcome(gid) == "committed")
        assert values_in(broker.url, topic) == [1]


def _kill_at_local_commit(tx: tallystick.Transaction, broker: BrokerProcess) -> None:
    """Have the broker die between the local commit and what follows it."""
    adapter = tx._block.adapter
    commit: Any = adapter.commit

    def commit_and_kill() -> None:
        commit()
        broker.kill()

    adapter.commit = commit_and_kill  # type: ignore[method-assign, union-attr]


class LosesTheAnswer(sqlite3.Connection):
    """Commits, and then fails as if the answer had been lost on the way."""

    def commit(self) -> None:
        super().commit()
        raise sqlite3.OperationalError("disk I/O error")


class DiesBeforeCommit(sqlite3.Connection):
    """Fails in the same way, but nothing was committed."""

    def commit(self) -> None:
        super().rollback()
        raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize(("kind", "outcome"), [(LosesTheAnswer, "committed"), (DiesBeforeCommit, "rolled_back")])
def test_an_unknown_commit_is_left_to_the_check_back(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, kind: type[sqlite3.Connection], outcome: str
) -> None:
    gid = ts.new_gid()
    connection = sqlite3.connect(bank.path, factory=kind)
    with pytest.raises(errors.OutcomeUnknown, match="do not run the block again") as unknown:
        pay(ts, bank, topic, 1, gid=gid, connection=connection)
    connection.close()
    assert unknown.value.extra["gid"] == gid
    eventually(lambda: ts.outcome(gid) == outcome)
    expected = [1] if outcome == "committed" else []
    assert values_in(broker.url, topic) == expected
    assert len(bank.notes()) == len(expected)


@pytest.mark.parametrize(("kind", "expected"), [(LosesTheAnswer, [1]), (DiesBeforeCommit, [])])
def test_an_unknown_commit_is_left_to_the_outbox(
    ts: tallystick.Client,
    broker: BrokerProcess,
    bank: Bank,
    topic: str,
    kind: type[sqlite3.Connection],
    expected: list[int],
) -> None:
    ts.redrive(bank.open, every=0.2)
    connection = sqlite3.connect(bank.path, factory=kind)
    with pytest.raises(errors.OutcomeUnknown, match="outbox re-driver"):
        pay(ts, bank, topic, 1, connection=connection, mode="outbox")
    connection.close()
    assert len(bank.rows("select gid from tallystick_outbox")) == len(expected)
    eventually(lambda: bank.rows("select gid from tallystick_outbox") == [])
    assert values_in(broker.url, topic) == expected


def test_not_waiting_for_the_broker_after_the_commit(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str
) -> None:
    gid = pay(ts, bank, topic, 1, wait=False, check=CheckBack(after=60))
    eventually(lambda: ts.outcome(gid) == "committed", seconds=30)


# Who answers, and when


def test_a_database_that_cannot_be_opened_twice_is_refused_with_advice(
    ts: tallystick.Client, bank: Bank, topic: str
) -> None:
    connection = sqlite3.connect(":memory:")
    create_tables(connection)
    connection.execute("create table ledger (note varchar(100))")
    for mode in ("check-back", "outbox"):
        with pytest.raises(errors.InvalidRequest, match="database=open_connection"):
            pay(ts, bank, topic, 1, connection=connection, mode=mode)
    connection.close()


def test_a_check_back_needs_a_group(broker: BrokerProcess, bank: Bank, topic: str) -> None:
    with tallystick.Client(broker.url) as ts, pytest.raises(errors.InvalidRequest, match="group"):
        pay(ts, bank, topic, 1)


def test_another_member_answers_for_one_that_died(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str
) -> None:
    """The first client commits locally and is gone before it can tell the broker."""
    with lossy_proxy(broker.port) as proxy:
        first = tallystick.Client(proxy.url, group=group, commit_wait=0.01, timeout=0.5, wait=True)
        proxy.refusing = COMMIT
        gid = pay(first, any_bank, topic, 1)
        first.close(timeout=0.01)
    with tallystick.Client(broker.url, group=group, database=any_bank.open, wait=True) as second:
        eventually(lambda: second.outcome(gid) == "committed")
    assert values_in(broker.url, topic) == [1]


def test_a_running_transaction_is_not_decided(broker: BrokerProcess, any_bank: Bank, topic: str, group: str) -> None:
    with tallystick.Client(broker.url, group=group, check_after=0.1, wait=True) as ts:
        with any_bank.connection() as connection, ts.transaction(connection, prepare="early") as tx:
            tx.send(topic, 1)
            tx.prepare()
            any_bank.note(connection, "slow")
            eventually(lambda: ts.stats.checks_unknown > 0)
            assert ts.transaction_state(tx.gid).state == "prepared"
        assert ts.outcome(tx.gid) == "committed"
    assert values_in(broker.url, topic) == [1]


def test_the_first_check_comes_after_the_time_that_the_transaction_sets(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    with tallystick.Client(broker.url, group=group, database=bank.open, wait=True) as ts:
        soon, late = ts.new_gid(), ts.new_gid()
        ts.prepare(soon, [tallystick.outgoing(topic, 1)], check_after=0.1)
        ts.prepare(late, [tallystick.outgoing(topic, 2)], check=CheckBack(after=60))
        eventually(lambda: ts.outcome(soon) == "rolled_back")
        time.sleep(1.0)
        assert ts.transaction_state(late).state == "prepared"
        ts.rollback(late)
    assert ts.stats.checks_answered == 1


def test_the_broker_itself_may_read_the_barrier(bank: Bank, topic: str, group: str) -> None:
    settings = {"check_after": "200ms", "check_interval": "200ms", "databases": {"bank": f"sqlite:///{bank.path}"}}
    with running_broker(**settings) as broker, lossy_proxy(broker.port) as proxy:
        ts = tallystick.Client(proxy.url, group=group, commit_wait=0.01, timeout=0.5, wait=True)
        proxy.refusing = COMMIT
        pay(ts, bank, topic, 1, check=CheckBack(database="bank"))
        ts.close(timeout=0.01)
        eventually(lambda: values_in(broker.url, topic) == [1])
    assert bank.notes() == ["paid"]


def test_an_error_in_the_barrier_is_unknown_and_never_an_outcome(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    def no_way_in() -> Any:
        raise RuntimeError("the database is away")

    with tallystick.Client(broker.url, group=group, database=no_way_in, wait=True) as ts:
        gid = ts.new_gid()
        ts.prepare(gid, [tallystick.outgoing(topic, 1)], check_after=0.05)
        eventually(lambda: ts.stats.checks_unknown > 0)
        view = eventually(lambda: (found := ts.transaction_state(gid)).last_error and found)
        assert view.state == "prepared"
        assert "the database is away" in view.last_error
        ts.rollback(gid)


@pytest.mark.fault
def test_polling_survives_restarts_of_the_broker(bank: Bank, topic: str, group: str) -> None:
    with (
        running_broker(check_after="200ms") as broker,
        tallystick.Client(broker.url, group=group, database=bank.open, wait=True) as ts,
    ):
        for _ in range(2):
            broker.kill()
            broker.restart()
            gid = ts.new_gid()
            ts.prepare(gid, [tallystick.outgoing(topic, 1)])
            eventually(lambda gid=gid: ts.outcome(gid) == "rolled_back")


def test_a_stopped_broker_is_waited_for_and_then_the_block_fails(bank: Bank, topic: str, group: str) -> None:
    with running_broker() as broker, tallystick.Client(broker.url, group=group, timeout=0.5, wait=True) as ts:
        ts.info()
        os.kill(broker.pid, signal.SIGSTOP)
        with pytest.raises(errors.BrokerUnavailable):
            pay(ts, bank, topic, 1)
        os.kill(broker.pid, signal.SIGCONT)
    assert bank.notes() == []


@pytest.mark.parametrize("opening", ["sqlalchemy", "sqlalchemy-session", "driver"])
def test_a_database_given_by_any_driver_answers_for_one_that_died(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, opening: str
) -> None:
    driver = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}[any_bank.engine]
    engine = create_engine(any_bank.url(driver), poolclass=NullPool)
    ways = {"sqlalchemy": engine.connect, "sqlalchemy-session": lambda: Session(engine), "driver": any_bank.open}
    with lossy_proxy(broker.port) as proxy:
        first = tallystick.Client(proxy.url, group=group, commit_wait=0.01, timeout=0.5, wait=True)
        proxy.refusing = COMMIT
        gid = pay(first, any_bank, topic, 1)
        first.close(timeout=0.01)
    with tallystick.Client(broker.url, group=group, database=ways[opening], wait=True) as second:
        eventually(lambda: second.outcome(gid) == "committed")
    engine.dispose()
    assert values_in(broker.url, topic) == [1]


def test_a_member_with_another_database_never_answers_for_one_it_does_not_know(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, tmp_path: Path
) -> None:
    """Its barrier has no row of the transaction, which would look like a rollback of what is committed elsewhere."""
    other = Bank("sqlite", tmp_path / "other.db")
    with lossy_proxy(broker.port) as proxy:
        first = tallystick.Client(proxy.url, group=group, commit_wait=0.01, timeout=0.5, wait=True)
        proxy.refusing = COMMIT
        gid = pay(first, bank, topic, 1)
        first.close(timeout=0.01)
    with tallystick.Client(broker.url, group=group, database=other.open, wait=True) as second:
        eventually(lambda: second.stats.checks_unknown > 0)
        assert second.transaction_state(gid).state == "prepared"
        assert other.rows("select * from tallystick_barrier where op = 'msg'") == []
        with tallystick.Client(broker.url, group=group, database=bank.open, wait=True) as third:
            eventually(lambda: third.outcome(gid) == "committed")
    assert values_in(broker.url, topic) == [1]


def test_a_backlog_is_answered_with_outcomes_only(
    any_bank: Bank, topic: str, group: str, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many questions at once are no reason for an `unknown`: it would count against each of them."""
    for limit in ("ANSWER_SECONDS", "TURN_SECONDS"):  # a busy machine is none, either
        monkeypatch.setattr(f"tallystick.client.answering.answerer.{limit}", 60.0)
    gids = [new_gid() for _ in range(2_500)]
    with RawClient(broker.url) as raw:
        source = adapted_source(any_bank)
        check = Check(after_ms=0, source=source)
        message = [OutgoingMessage(topic, b"1")]
        assert set(raw.batch(*[Prepare(gid, group, message, check) for gid in gids])) == {None}
    with tallystick.Client(broker.url, group=group, database=any_bank.open, wait=True) as ts:
        eventually(lambda: ts.stats.checks_answered >= len(gids), "all answered")
        assert ts.stats.checks_unknown == 0
        assert {ts.outcome(gid) for gid in gids[::250]} == {"rolled_back"}


def adapted_source(bank: Bank) -> str:
    with bank.connection() as connection:
        adapter = adapt_sync(connection)
        return run_sync(adapter, ensure_identity()).source(adapter.address)
