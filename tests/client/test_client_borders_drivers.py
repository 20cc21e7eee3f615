"""What a driver does not do as it is told, or does by itself: refused, or made to work."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
import pytest
from border_support import opened
from client_support import Bank, values_in
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from servers import Server
from tallystick.barrier import TransactionOpen, UnsupportedConnection

pytestmark = pytest.mark.postgresql


@pytest.fixture
def bank(postgres: Server) -> Bank:
    return Bank("postgresql", postgres)


def nothing_happened(broker: BrokerProcess, bank: Bank, topic: str) -> bool:
    return (bank.notes(), values_in(broker.url, topic)) == ([], [])


@pytest.mark.parametrize("mode", ["check-back", "outbox", "consumer-dedup"])
def test_psycopg2_in_autocommit_mode_is_refused(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, mode: Any
) -> None:
    """Its commit() does nothing there, not even after BEGIN: the message would be sent, and the row never be there."""
    engine = create_engine(bank.url("postgresql+psycopg2"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with (
        engine.connect() as connection,
        pytest.raises(UnsupportedConnection, match="READ COMMITTED"),
        ts.transaction(connection, mode=mode),
    ):
        pytest.fail("the block was entered")
    assert nothing_happened(broker, bank, topic)
    # What the error advises works.
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        with ts.transaction(connection, mode=mode) as tx:
            connection.execute(text("insert into ledger values ('paid')"))
            tx.send(topic, 1)
        assert bank.notes() == ["paid"]
    engine.dispose()


@pytest.mark.parametrize("by", ["inbox", "offset"])
def test_a_consumer_with_psycopg2_in_autocommit_mode_has_no_effect_and_acknowledges_nothing(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_engine(bank.url("postgresql+psycopg2"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with tallystick.Client(broker.url, group=group, wait=True) as ts:
        ts.send(topic, 1)

        @ts.subscribe(topic, exactly_once=engine.connect, by=by)
        def handle(message: tallystick.Message, connection: Any) -> None:
            connection.execute(text("insert into ledger values ('handled')"))

        ts.start()
        eventually(lambda: "psycopg2 does not commit" in caplog.text, "the handler's transaction is refused")
        assert ts.stats.handled == 0
        assert ts.offsets(group, topic).lag == 1
    assert bank.notes() == []
    engine.dispose()


@pytest.mark.parametrize("order", ["late", "early"])
@pytest.mark.parametrize("autocommit", [False, True])
def test_psycopgs_own_block_inside_ours_is_a_savepoint(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, autocommit: bool, order: Any
) -> None:
    """First thing in the block, where nothing has been sent to the server yet, it used to commit by itself."""

    def block(fail: bool) -> None:
        with ts.transaction(connection, prepare=order) as tx:
            tx.send(topic, 1)
            if order == "early":
                tx.prepare()
            with connection.transaction():
                connection.execute("insert into ledger values ('inside')")
            if fail:
                raise KeyError

    with bank.connection() as connection:
        connection.autocommit = autocommit
        with pytest.raises(KeyError):
            block(fail=True)
        assert nothing_happened(broker, bank, topic)
        block(fail=False)
    assert (bank.notes(), values_in(broker.url, topic)) == (["inside"], [1])


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "create_savepoint", "control_fully"])
@pytest.mark.parametrize("used_before", [False, True])
def test_a_session_that_is_joined_to_an_outer_transaction(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, mode: Any, used_before: bool
) -> None:
    def block(session: Session) -> None:
        with ts.transaction(session) as tx:
            session.execute(text("insert into ledger values ('paid')"))
            tx.send(topic, 1)

    engine = create_engine(bank.url("postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=mode) as session:
            if used_before:
                session.execute(text("select 1"))
            if mode == "control_fully":
                block(session)
            else:
                with pytest.raises(tallystick.TallystickError, match=r"outer transaction|joined to a transaction"):
                    block(session)
        if mode != "control_fully":
            outer.rollback()
    engine.dispose()
    if mode == "control_fully":
        assert (bank.notes(), values_in(broker.url, topic)) == (["paid"], [1])
    else:
        assert nothing_happened(broker, bank, topic)


@pytest.mark.parametrize("where", ["around", "inside"])
def test_pipeline_mode_is_refused_by_its_name(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, where: str
) -> None:
    def around() -> None:
        with connection.pipeline(), ts.transaction(connection) as tx:
            connection.execute("insert into ledger values ('paid')")
            tx.send(topic, 1)

    def entered_inside_and_not_left() -> None:
        with ts.transaction(connection) as tx:
            connection.execute("insert into ledger values ('paid')")
            tx.send(topic, 1)
            stack.enter_context(connection.pipeline())

    with bank.connection() as connection, contextlib.ExitStack() as stack:
        with pytest.raises(UnsupportedConnection, match="pipeline"):
            around() if where == "around" else entered_inside_and_not_left()
        connection.rollback()
    assert nothing_happened(broker, bank, topic)


def test_a_pipeline_that_is_left_before_the_end_is_the_users_own_business(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str
) -> None:
    with bank.connection() as connection, ts.transaction(connection) as tx:
        with connection.pipeline():
            connection.execute("insert into ledger values ('one')")
            connection.execute("insert into ledger values ('two')")
        tx.send(topic, 1)
    assert (bank.notes(), values_in(broker.url, topic)) == (["one", "two"], [1])


def test_a_two_phase_transaction_is_not_ours_to_end(ts: tallystick.Client, bank: Bank) -> None:
    with bank.connection() as connection:
        connection.tpc_begin(connection.xid(1, "gtrid", "bqual"))
        with pytest.raises(TransactionOpen, match="tpc_begin"), ts.transaction(connection):
            pytest.fail("the block was entered")


@pytest.mark.parametrize("kind", ["psycopg", "core-psycopg", "orm-psycopg2"])
def test_set_transaction_first_in_a_block_is_allowed(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, kind: str
) -> None:
    with opened(bank, kind) as conn, ts.transaction(conn.connection) as tx:
        conn.execute("set transaction isolation level serializable")
        conn.note("paid")
        tx.send(topic, 1)
    assert (bank.notes(), values_in(broker.url, topic)) == (["paid"], [1])


def test_what_psycopg_was_told_of_its_transactions_holds_in_a_block(ts: tallystick.Client, bank: Bank) -> None:
    with bank.connection() as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        with ts.transaction(connection):
            assert connection.execute("show transaction_isolation").fetchone() == ("serializable",)


@pytest.mark.parametrize("factory", [psycopg.RawCursor, psycopg.ClientCursor])
def test_whatever_cursors_a_connection_of_psycopg_makes(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, factory: Any
) -> None:
    with bank.connection() as connection:
        connection.cursor_factory = factory
        with ts.transaction(connection, wait=True) as tx:
            connection.cursor().execute("insert into ledger (note) values ('raw')")
            tx.send(topic, 1)
    assert (bank.notes(), values_in(broker.url, topic)) == (["raw"], [1])
