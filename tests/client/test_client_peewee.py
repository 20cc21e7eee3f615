"""Peewee's databases as the connection of a block, and SQLModel's sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peewee
import pytest
from client_support import Bank, values_in
from sqlmodel import Field, Session, SQLModel, create_engine, select

import tallystick
from brokers import BrokerProcess
from eventually import eventually_equal
from tallystick import errors
from tallystick.barrier import TransactionLost, TransactionOpen, create_tables

DATABASES = [
    "sqlite",
    pytest.param("psycopg", marks=[pytest.mark.postgresql, pytest.mark.full]),
    pytest.param("psycopg2", marks=[pytest.mark.postgresql, pytest.mark.full]),
    pytest.param("pymysql", marks=[pytest.mark.mariadb, pytest.mark.full]),
    pytest.param("MySQLdb", marks=[pytest.mark.mariadb, pytest.mark.full]),
]


@pytest.fixture(params=DATABASES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bank(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    if kind == "sqlite":
        return Bank("sqlite", tmp_path / "bank.db")
    engine, server = ("postgresql", "postgres") if kind.startswith("psycopg") else ("mysql", "mariadb")
    return Bank(engine, request.getfixturevalue(server))


@pytest.fixture
def db(kind: str, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if kind == "sqlite":
        made: Any = peewee.SqliteDatabase(str(bank.path), timeout=10)
    else:
        given = bank.parameters()
        name = given.pop("dbname", None) or given.pop("database")
        if kind == "psycopg":
            made = peewee.PostgresqlDatabase(name, prefer_psycopg3=True, isolation_level="SERIALIZABLE", **given)
        elif kind == "psycopg2":
            made = peewee.PostgresqlDatabase(name, **given)
        else:
            monkeypatch.setattr(peewee, "mysql", __import__(kind))
            made = peewee.MySQLDatabase(name, **given)
    yield made
    if not made.is_closed():
        made.close()


def note(db: Any, what: str) -> None:
    db.execute_sql(f"insert into ledger (note) values ('{what}')")


def _fail_in(context: Any, do: Callable[[Any], object]) -> None:
    with context as entered:
        do(entered)
        raise ZeroDivisionError


def _block(ts: tallystick.Client, db: Any, topic: str, what: str, then: Callable[[], object]) -> None:
    with ts.transaction(db) as tx:
        tx.send(topic, 1)
        note(db, what)
        then()


@pytest.mark.parametrize("mode", ["check-back", "outbox"])
def test_both_or_neither_and_atomic_is_a_savepoint(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, db: Any, topic: str, mode: Any
) -> None:
    create_tables(db)
    with ts.transaction(db, mode=mode) as tx:
        note(db, "paid")
        with pytest.raises(ZeroDivisionError):
            _fail_in(db.atomic(), lambda _: note(db, "not this"))
        with db.atomic():
            note(db, "and this")
        tx.send(topic, 1)
    with pytest.raises(ZeroDivisionError):
        _fail_in(ts.transaction(db, mode=mode), lambda tx: (note(db, "undone"), tx.send(topic, 2)))
    assert not db.in_transaction()
    with db.atomic():  # Peewee's own goes on
        note(db, "without a block")
    assert bank.notes() == ["and this", "paid", "without a block"]
    assert values_in(broker.url, topic) == [1]


def test_a_block_inside_of_atomic_is_refused(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, db: Any, topic: str
) -> None:
    with db.atomic():
        note(db, "of Peewee")
        with pytest.raises(TransactionOpen, match=r"inside a db\.atomic\(\)"), ts.transaction(db):
            pytest.fail("the block was entered")
    with ts.transaction(db), pytest.raises(TransactionOpen), ts.transaction(db):
        pytest.fail("the block was entered")
    assert bank.notes() == ["of Peewee"]


@pytest.mark.parametrize("end", ["commit", "rollback", "session_commit", "session_rollback"])
def test_a_transaction_that_is_ended_inside_is_noticed(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, db: Any, topic: str, end: str
) -> None:
    with pytest.raises(TransactionLost):
        _block(ts, db, topic, "before", getattr(db, end))
    assert (bank.notes(), values_in(broker.url, topic)) == (["before"] if "commit" in end else [], [])
    assert not db.in_transaction()


def test_what_is_to_run_after_the_commit_does(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, db: Any, topic: str
) -> None:
    ran: list[str] = []
    with ts.transaction(db) as tx:
        note(db, "paid")
        db.after_commit(lambda: ran.append("after"))
        tx.send(topic, 1)
    assert ran == ["after"]

    def fail() -> None:
        raise peewee.IntegrityError("not of the commit")

    with pytest.raises(errors.OutcomeUnknown):
        _block(ts, db, topic, "paid too", lambda: db.after_commit(fail))
    eventually_equal(lambda: values_in(broker.url, topic), [1, 1])
    assert bank.notes() == ["paid", "paid too"]


def test_a_consumer_with_peewee(broker: BrokerProcess, bank: Bank, db: Any, topic: str, group: str) -> None:
    with tallystick.Client(broker.url, group=group, database=lambda: db) as ts:

        @ts.subscribe(topic, exactly_once=lambda: db)
        def handle(message: tallystick.Message, database: Any, tx: Any) -> None:
            note(database, message.text)
            tx.send(f"{topic}-out", 1)

        ts.send(topic, "a")
        ts.start()
        eventually_equal(bank.notes, ["a"])
        eventually_equal(lambda: values_in(broker.url, f"{topic}-out"), [1])


class Ledger(SQLModel, table=True):
    note: str = Field(primary_key=True)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_sessions_of_sqlmodel(ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str) -> None:
    engine = create_engine(f"sqlite:///{bank.path}")
    with Session(engine) as session:
        with ts.transaction(session) as tx:
            session.add(Ledger(note="paid"))
            tx.send(topic, 1)
        with pytest.raises(ZeroDivisionError):
            _fail_in(ts.transaction(session), lambda tx: (session.add(Ledger(note="undone")), tx.send(topic, 2)))
        assert [row.note for row in session.exec(select(Ledger))] == ["paid"]
    engine.dispose()
    assert values_in(broker.url, topic) == [1]
