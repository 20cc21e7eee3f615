"""The local transaction ends inside the block, by the user's code or by the database: never without a word."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mysql.connector
import MySQLdb
import pymysql
import pytest
from border_support import KINDS, MYSQL_DRIVERS, Open, kinds, opened
from client_support import Bank, messages_in, values_in
from sqlalchemy.exc import DBAPIError

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from tallystick import errors
from tallystick.barrier import TransactionLost, TransactionOpen

# What the user's code does in the middle of its block, and whether that commits what came before.
ENDS: dict[str, tuple[Callable[[Open], Any], bool]] = {
    "commit": (lambda conn: conn.connection.commit(), True),
    "rollback": (lambda conn: conn.connection.rollback(), False),
    "driver's commit": (lambda conn: conn.raw().commit(), True),
    "driver's rollback": (lambda conn: conn.raw().rollback(), False),
    "sql commit": (lambda conn: conn.execute("commit"), True),
    "sql rollback": (lambda conn: conn.execute("rollback"), False),
}
WAYS = [("check-back", "late"), ("check-back", "early"), ("outbox", "late"), ("consumer-dedup", "late")]
ways = pytest.mark.parametrize(("mode", "order"), WAYS, ids=["late", "early", "outbox", "consumer-dedup"])


@pytest.fixture
def bank(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    engine = KINDS[kind][0]
    server = {"postgresql": "postgres", "mysql": "mariadb"}.get(engine)
    return Bank(engine, request.getfixturevalue(server) if server else tmp_path / "bank.db")


@pytest.fixture
def ts(broker: BrokerProcess, group: str, bank: Bank, kind: str) -> Iterator[tallystick.Client]:
    # mysqlclient does not tell its password, so the client must be told the way in.
    ways = {"database": bank.open} if kind.startswith("mysqlclient") else {}
    with tallystick.Client(broker.url, group=group, wait=True, **ways) as client:
        yield client


def block(ts: tallystick.Client, conn: Open, topic: str, mode: Any, order: Any, middle: Callable[[], Any]) -> str:
    """A change, whatever `middle` does, and another change."""
    with ts.transaction(conn.connection, mode=mode, prepare=order) as tx:
        tx.send(topic, 1)
        if order == "early":
            tx.prepare()
        conn.note("before")
        middle()
        conn.note("after")
    return tx.gid


def committed(bank: Bank) -> bool:
    return bool(bank.rows("select gid from tallystick_barrier where op = 'msg' and reason = 'msg'"))


def visible(broker: BrokerProcess, topic: str) -> list[str]:
    """The outcome that consumers would see; a prepared message in consumer-dedup mode is none."""
    signs = [message.header("tallystick-sign") for message in messages_in(broker.url, topic)]
    return [sign for sign in signs if sign not in ("prepare", "rollback")]


ENDINGS = [(end, mode, order) for end in ("commit", "rollback") for mode, order in WAYS]
ENDINGS += [(end, "check-back", "late") for end in ENDS if end not in ("commit", "rollback")]
DEAF = "psycopg2-autocommit"


@kinds(*(kind for kind in KINDS if kind != DEAF))
@pytest.mark.parametrize(("end", "mode", "order"), ENDINGS)
def test_a_block_whose_transaction_was_ended_inside_says_so(
    ts: tallystick.Client,
    broker: BrokerProcess,
    bank: Bank,
    kind: str,
    topic: str,
    end: str,
    mode: str,
    order: str,
) -> None:
    how, commits = ENDS[end]
    # sqlite3 and SQLAlchemy may refuse a commit in SQL by themselves: that is an answer too.
    with opened(bank, kind) as conn, pytest.raises((TransactionLost, sqlite3.Error, DBAPIError)):
        block(ts, conn, topic, mode, order, lambda: how(conn))
    if order == "early" and committed(bank):
        # The mark was committed with what came before it: the rows are there, and so is the message.
        eventually(lambda: values_in(broker.url, topic) == [1], "the message of what was committed")
        assert "before" in bank.notes()
    else:
        assert visible(broker, topic) == []
    if not commits:
        assert "before" not in bank.notes()


@kinds(DEAF)
@pytest.mark.parametrize(("mode", "order"), WAYS[:3])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_in_psycopg2s_autocommit_mode_its_methods_end_nothing_and_statements_do(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, mode: str, order: str, end: str
) -> None:
    with opened(bank, DEAF) as conn:
        block(ts, conn, topic, mode, order, getattr(conn.connection, end))
        assert bank.notes() == ["after", "before"]
        eventually(lambda: len(visible(broker, topic)) == 1, "the message of the block")
        with pytest.raises(TransactionLost):
            block(ts, conn, topic, mode, order, lambda: conn.execute(end))
        assert conn.connection.autocommit is True


@kinds("psycopg", "psycopg2", "orm-psycopg", "orm-psycopg2", "orm-sqlite", "orm-pymysql", "sqlite3", "pymysql")
@ways
def test_a_rollback_after_a_caught_error_is_noticed(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, kind: str, topic: str, mode: str, order: str
) -> None:
    bank.run("create unique index once on ledger (note)")
    bank.run("insert into ledger (note) values ('taken')")

    def stumble() -> None:
        with contextlib.suppress(Exception):
            conn.note("taken")
        conn.connection.rollback()

    with opened(bank, kind) as conn, pytest.raises(TransactionLost):
        block(ts, conn, topic, mode, order, stumble)
    assert (bank.notes(), visible(broker, topic)) == (["taken"], [])


@kinds("sqlite3")
@ways
@pytest.mark.parametrize("how", ["executescript", "with conn"])
def test_what_sqlite3_commits_by_itself_is_noticed(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, mode: str, order: str, how: str
) -> None:
    def middle() -> None:
        if how == "executescript":
            conn.connection.executescript("create table if not exists other (id integer)")
        else:
            with conn.connection:
                conn.note("inside")

    with opened(bank, "sqlite3") as conn, pytest.raises(TransactionLost):
        block(ts, conn, topic, mode, order, middle)
    if order != "early":
        assert visible(broker, topic) == []


@kinds("pymysql", "pymysql-autocommit", "core-pymysql", "orm-pymysql", *MYSQL_DRIVERS)
@ways
def test_ddl_that_commits_is_noticed(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, kind: str, topic: str, mode: str, order: str
) -> None:
    with opened(bank, kind) as conn, pytest.raises(TransactionLost):
        block(ts, conn, topic, mode, order, lambda: conn.execute("create table if not exists other (id integer)"))
    if order != "early":
        assert visible(broker, topic) == []


@kinds("pymysql", "pymysql-autocommit", "core-pymysql", "orm-pymysql", *MYSQL_DRIVERS)
@ways
def test_a_deadlock_that_is_swallowed_is_noticed(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, kind: str, topic: str, mode: str, order: str
) -> None:
    with opened(bank, kind) as conn, pytest.raises(TransactionLost):
        block(ts, conn, topic, mode, order, lambda: lose_a_deadlock(conn))
    after = ["after"] if kind.endswith("-autocommit") else []  # the connection commits it by itself
    assert (bank.notes(), visible(broker, topic)) == (after, [])


def lose_a_deadlock(conn: Open) -> None:
    """MariaDB rolls the whole transaction back, and the error is swallowed as if only the statement had failed."""
    bank = conn.bank
    bank.run("create table if not exists locks (id integer primary key, n integer)")
    bank.run("replace into locks values (1, 0), (2, 0)")
    with bank.connection() as other:
        cursor = other.cursor()
        # The one that has changed less is given up: the other one changes a lot.
        cursor.execute("insert into ledger (note) select concat('bulk', seq) from seq_1_to_500")
        cursor.execute("update locks set n = 1 where id = 1")
        conn.execute("select * from locks where id = 2 for update")
        waiting = threading.Thread(target=lambda: cursor.execute("select * from locks where id = 2 for update"))
        waiting.start()
        eventually(lambda: lock_waits(bank) > 0, "the other one waits")
        with pytest.raises((pymysql.Error, MySQLdb.Error, mysql.connector.Error, DBAPIError)) as lost:
            conn.execute("select * from locks where id = 1 for update")
        assert "Deadlock" in str(lost.value)
        waiting.join()
        other.rollback()


def lock_waits(bank: Bank) -> int:
    rows = bank.rows("select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'")
    return int(rows[0][0])


@kinds()
@ways
@pytest.mark.parametrize("caught", [False, True])
def test_a_block_inside_a_block_on_one_connection_is_refused(
    ts: tallystick.Client,
    broker: BrokerProcess,
    bank: Bank,
    kind: str,
    topic: str,
    mode: str,
    order: str,
    caught: bool,
) -> None:
    """What the outer one has done is neither committed by the inner one nor harmed by its refusal."""

    def inner() -> None:
        perhaps = contextlib.suppress(TransactionOpen) if caught else contextlib.nullcontext()
        with perhaps, ts.transaction(conn.connection) as tx:
            conn.note("inner")
            tx.send(topic, 2)

    with opened(bank, kind) as conn:
        if caught:
            block(ts, conn, topic, mode, order, inner)
        else:
            with pytest.raises(TransactionOpen, match="another Tallystick block"):
                block(ts, conn, topic, mode, order, inner)
        # The connection is in order for the next one.
        with ts.transaction(conn.connection) as tx:
            conn.note("next")
            tx.send(topic, 3)
    assert bank.notes() == (["after", "before", "next"] if caught else ["next"])
    wanted = [1, 3] if caught else [3]
    if mode != "consumer-dedup":
        eventually(lambda: values_in(broker.url, topic) == wanted, "messages as rows")


@kinds("psycopg", "pymysql", "sqlite3")
def test_a_block_that_was_left_open_does_not_close_the_connection_for_ever(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, kind: str, topic: str
) -> None:
    with opened(bank, kind) as conn:
        left = ts.transaction(conn.connection).__enter__()
        conn.note("left open")
        conn.connection.rollback()  # as a pool does when it gets the connection back
        with ts.transaction(conn.connection) as tx:
            conn.note("next")
            tx.send(topic, 1)
        with pytest.raises(TransactionLost):
            left.commit()
    assert (bank.notes(), values_in(broker.url, topic)) == (["next"], [1])


@kinds("psycopg", "psycopg-autocommit", "core-psycopg", "orm-psycopg", "orm-psycopg2")
def test_an_error_that_aborted_the_transaction_and_was_swallowed(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, kind: str, topic: str
) -> None:
    def stumble() -> None:
        with contextlib.suppress(Exception):
            conn.execute("select 1 / 0")

    def block_without_a_statement_after_it() -> None:
        with ts.transaction(conn.connection) as tx:
            tx.send(topic, 1)
            conn.note("before")
            stumble()

    with opened(bank, kind) as conn, pytest.raises((TransactionLost, DBAPIError)):
        block_without_a_statement_after_it()
    assert (bank.notes(), visible(broker, topic)) == ([], [])


@kinds("sqlite3", "psycopg", "pymysql", "orm-sqlite", "orm-psycopg", "orm-pymysql")
@ways
def test_savepoints_of_the_user_are_the_users_own(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, kind: str, topic: str, mode: str, order: str
) -> None:
    def middle() -> None:
        conn.execute("savepoint mine")
        conn.note("undone")
        conn.execute("rollback to savepoint mine")
        conn.execute("savepoint kept")

    with opened(bank, kind) as conn:
        block(ts, conn, topic, mode, order, middle)
    assert bank.notes() == ["after", "before"]
    if mode != "consumer-dedup":
        eventually(lambda: values_in(broker.url, topic) == [1])


@kinds("sqlite3", "psycopg", "pymysql")
def test_a_transaction_object_that_has_ended_takes_nothing_more(
    ts: tallystick.Client, bank: Bank, kind: str, topic: str
) -> None:
    with opened(bank, kind) as conn:
        with ts.transaction(conn.connection) as tx:
            conn.note("once")
            tx.send(topic, 1)
        with pytest.raises(errors.InvalidRequest):
            tx.send(topic, 2)
        with pytest.raises(errors.InvalidRequest):
            tx.__enter__()
        with pytest.raises(errors.InvalidRequest):
            tx.commit()
    assert bank.notes() == ["once"]
