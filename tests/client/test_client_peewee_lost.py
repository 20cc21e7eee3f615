"""A connection of Peewee's that is lost in a block: the thread goes on as after Peewee's own `atomic`."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import MySQLdb
import peewee
import psycopg
import psycopg2
import pymysql
import pytest
from client_support import Bank, values_in
from playhouse.pool import PooledMySQLDatabase, PooledPostgresqlDatabase

import tallystick
from brokers import BrokerProcess
from cutting_proxy import Cut, CuttingProxy, cutting_proxy
from eventually import eventually_equal
from tallystick import errors
from tallystick.barrier import TransactionLost
from tallystick.client.transactions import outbox

KINDS = [
    pytest.param("psycopg2", marks=pytest.mark.postgresql),
    pytest.param("pymysql", marks=pytest.mark.mariadb),
    pytest.param("psycopg", marks=[pytest.mark.postgresql, pytest.mark.full]),
    pytest.param("MySQLdb", marks=[pytest.mark.mariadb, pytest.mark.full]),
    pytest.param("psycopg2-pool", marks=[pytest.mark.postgresql, pytest.mark.full]),
    pytest.param("pymysql-pool", marks=[pytest.mark.mariadb, pytest.mark.full]),
]

MODES: list[dict[str, Any]] = [{}, {"prepare": "early"}, {"mode": "outbox"}]
COMMIT, ROLLBACK = rb"commit\0?$", rb"rollback\0?$"
LOST = (peewee.PeeweeException, psycopg.Error, psycopg2.Error, pymysql.Error, MySQLdb.Error, ZeroDivisionError)
CUTS: list[Cut] = ["before", "after"]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outbox rows of a commit whose answer was lost are looked for at once."""
    monkeypatch.setattr(outbox, "LEFT_BEHIND_SECONDS", 0.3)
    monkeypatch.setattr(outbox, "REDRIVE_SECONDS", 0.2)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bank(kind: str, request: pytest.FixtureRequest) -> Bank:
    engine, server = ("postgresql", "postgres") if kind.startswith("psycopg") else ("mysql", "mariadb")
    return Bank(engine, request.getfixturevalue(server))


@pytest.fixture
def proxy(bank: Bank) -> Iterator[CuttingProxy]:
    with cutting_proxy(bank.parameters()["port"]) as proxy:
        yield proxy


@pytest.fixture
def db(kind: str, bank: Bank, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    given = {**bank.parameters(), "port": proxy.port}
    driver, _, pool = kind.partition("-")
    if bank.engine == "postgresql":
        made: Any = (PooledPostgresqlDatabase if pool else peewee.PostgresqlDatabase)(
            given.pop("dbname"), prefer_psycopg3=driver == "psycopg", **given
        )
    else:
        monkeypatch.setattr(peewee, "mysql", __import__(driver))
        made = (PooledMySQLDatabase if pool else peewee.MySQLDatabase)(given.pop("database"), **given)
    yield made
    (made.close_all if pool else made.close)()


def cut_at(proxy: CuttingProxy, pattern: bytes, cut: Cut = "before") -> None:
    """Lose the connection at the statement that matches."""
    wanted = re.compile(pattern, re.IGNORECASE)
    proxy._choose = lambda piece: cut if wanted.search(piece) else "no"


def pay(
    ts: tallystick.Client, db: Any, topic: str, number: int, then: Callable[[], object] = lambda: None, **options: Any
) -> None:
    with ts.transaction(db, **options) as tx:
        tx.send(topic, number)
        if options.get("prepare") == "early":
            tx.prepare()
        db.execute_sql(f"insert into ledger (note) values ('{number:03}')")
        then()


def sets_agree(broker: BrokerProcess, bank: Bank, topic: str) -> None:
    eventually_equal(lambda: values_in(broker.url, topic), [int(note) for note in bank.notes()])


@pytest.mark.parametrize("reconnect", ["by hand", "by itself"])
def test_a_connection_that_is_lost_at_the_commit(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, proxy: CuttingProxy, db: Any, topic: str, reconnect: str
) -> None:
    hooks: list[int] = []
    known: list[str] = []
    number = 0
    for options in MODES:
        for cut in CUTS:
            number += 2
            cut_at(proxy, COMMIT, cut)
            with pytest.raises(errors.OutcomeUnknown):
                pay(ts, db, topic, number, lambda: db.after_commit(lambda: hooks.append(1)), **options)
            proxy.calm()
            assert not db.in_transaction(), (options, cut)
            if reconnect == "by hand":
                db.close()
                db.connect()
            pay(ts, db, topic, number + 1, **options)
            known += [f"{number:03}"] * (cut == "after") + [f"{number + 1:03}"]
    assert hooks == []  # a commit that is unknown is not one to run them after
    eventually_equal(bank.notes, known)
    sets_agree(broker, bank, topic)


def _fail(_: Any) -> None:
    raise ZeroDivisionError


def _statement(db: Any) -> None:
    db.execute_sql("select 'lost'")


def _savepoint(db: Any) -> None:
    with db.atomic():
        db.execute_sql("select 1")


def _ignored(db: Any) -> None:
    with pytest.raises(peewee.PeeweeException):
        _statement(db)


LOSSES: list[tuple[bytes, Callable[[Any], None]]] = [
    (ROLLBACK, _fail),
    (rb"'lost'", _statement),
    (rb"'lost'", _ignored),
    (rb"(?<!release )savepoint .s[0-9a-f]{32}", _savepoint),
    (rb"release savepoint .s[0-9a-f]{32}", _savepoint),
]


@pytest.mark.parametrize("reconnect", ["by hand", "by itself"])
def test_a_connection_that_is_lost_before_the_commit(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, proxy: CuttingProxy, db: Any, topic: str, reconnect: str
) -> None:
    for number, (pattern, act) in enumerate(LOSSES):
        cut_at(proxy, pattern)
        with pytest.raises(LOST):
            pay(ts, db, topic, 100 + number, lambda act=act: act(db))  # type: ignore[misc]
        proxy.calm()
        assert (proxy.cut, db.in_transaction()) == (number + 1, False), pattern
        if reconnect == "by hand":
            db.close()
            db.connect()
        pay(ts, db, topic, number)
    assert values_in(broker.url, topic) == [int(note) for note in bank.notes()] == list(range(len(LOSSES)))


class Interrupted(BaseException):
    """What ends a thread in the middle, such as Ctrl-C."""


class Injected(sqlite3.Connection):
    """Fails at the commit or at the rollback, before or after it has done it."""

    at: tuple[str, str, BaseException | None] = ("", "", None)

    def commit(self) -> None:
        self._at("commit", super().commit)

    def rollback(self) -> None:
        self._at("rollback", super().rollback)

    def _at(self, name: str, act: Callable[[], None]) -> None:
        word, moment, error = self.at
        if word == name and moment == "before" and error is not None:
            raise error
        act()
        if word == name and error is not None:
            raise error


@pytest.fixture
def file_bank(tmp_path: Path) -> Bank:
    return Bank("sqlite", tmp_path / "bank.db")


@pytest.fixture
def file_db(file_bank: Bank) -> Iterator[Any]:
    made = peewee.SqliteDatabase(str(file_bank.path), timeout=10, factory=Injected, check_same_thread=False)
    yield made
    made.close()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("error", [sqlite3.OperationalError("disk I/O error"), Interrupted()], ids=["error", "Ctrl-C"])
def test_a_commit_that_fails_or_is_interrupted(
    ts: tallystick.Client,
    broker: BrokerProcess,
    file_bank: Bank,
    file_db: Any,
    topic: str,
    moment: str,
    error: BaseException,
) -> None:
    file_db.connect()
    for number, options in enumerate(MODES):
        file_db.connection().at = ("commit", moment, error)
        with pytest.raises((errors.OutcomeUnknown, Interrupted)):
            pay(ts, file_db, topic, 10 + number, **options)
        file_db.connection().at = ("", "", None)
        assert (file_db.in_transaction(), file_db.connection().in_transaction) == (False, False)
        pay(ts, file_db, topic, number, **options)
    assert len(file_bank.notes()) == (2 if moment == "after" else 1) * len(MODES)
    sets_agree(broker, file_bank, topic)


def test_a_transaction_that_was_left_open_in_the_block_undoes_it(
    ts: tallystick.Client, broker: BrokerProcess, file_bank: Bank, file_db: Any, topic: str
) -> None:
    with pytest.raises(TransactionLost, match="has not ended"):
        pay(ts, file_db, topic, 10, lambda: file_db.transaction().__enter__())
    assert (file_db.in_transaction(), file_db.connection().in_transaction) == (False, False)
    pay(ts, file_db, topic, 1)
    assert (file_bank.notes(), values_in(broker.url, topic)) == (["001"], [1])


def test_a_block_that_another_thread_ends_is_undone_in_its_own(
    ts: tallystick.Client, broker: BrokerProcess, file_bank: Bank, file_db: Any, topic: str
) -> None:
    ran: list[str] = []

    def steps() -> Iterator[None]:
        with ts.transaction(file_db) as tx:
            tx.send(topic, 10)
            file_db.execute_sql("insert into ledger (note) values ('010')")
            file_db.after_commit(lambda: ran.append("of the block that was undone"))
            yield

    block = steps()
    next(block)
    thread = threading.Thread(target=block.close)  # type: ignore[attr-defined]
    thread.start()
    thread.join(60)
    assert not file_db.in_transaction()
    file_db.close()
    pay(ts, file_db, topic, 1)
    assert (file_bank.notes(), values_in(broker.url, topic), ran) == (["001"], [1], [])


def test_a_consumer_goes_on_after_a_connection_that_was_lost_at_its_commit(
    broker: BrokerProcess, bank: Bank, proxy: CuttingProxy, db: Any, topic: str, group: str
) -> None:
    seen: list[bytes] = []

    def choose(piece: bytes) -> Cut:
        """Lose the connection at the first commit that follows an effect."""
        if seen == [b"effect"] and re.search(COMMIT, piece, re.IGNORECASE):
            seen.append(b"lost")
            return "before"
        if not seen and b"into ledger" in piece:
            seen.append(b"effect")
        return "no"

    proxy._choose = choose
    with tallystick.Client(broker.url, group=group) as ts:

        @ts.subscribe(topic, exactly_once=lambda: db, concurrency=1)
        def handle(message: tallystick.Message, database: Any) -> None:
            database.execute_sql(f"insert into ledger (note) values ('{message.text}')")

        for number in range(4):
            ts.send(topic, number)
        ts.start()
        eventually_equal(bank.notes, ["0", "1", "2", "3"])
    assert seen == [b"effect", b"lost"]
