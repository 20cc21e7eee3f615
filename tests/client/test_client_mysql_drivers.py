"""What is particular to mysqlclient and mysql.connector: what they do not tell, and what their users may have set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mysql.connector
import mysql.connector.pooling
import MySQLdb
import MySQLdb.cursors
import pytest
from client_support import Bank, values_in

import tallystick
from brokers import BrokerProcess
from servers import Server
from tallystick import errors
from tallystick.barrier import UnsupportedConnection, adapt_sync, create_tables

pytestmark = pytest.mark.mariadb


@pytest.fixture
def bank(mariadb: Server) -> Bank:
    return Bank("mysql", mariadb)


@pytest.fixture
def ts(broker: BrokerProcess, group: str, bank: Bank) -> Iterator[tallystick.Client]:
    with tallystick.Client(broker.url, group=group, wait=True, database=bank.open) as client:
        yield client


def pay(
    ts: tallystick.Client,
    connection: Any,
    topic: str,
    mode: Any = "check-back",
    then: Callable[[], object] = lambda: None,
) -> None:
    with ts.transaction(connection, mode=mode) as tx:
        connection.cursor().execute("insert into ledger (note) values ('paid')")
        tx.send(topic, 1)
        then()


def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("mode", ["check-back", "outbox"])
def test_a_block_over_mysqlclient_says_that_the_client_must_be_told_the_way_in(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, mode: str
) -> None:
    connection = MySQLdb.connect(**bank.parameters())
    with tallystick.Client(broker.url, group=group) as ts, pytest.raises(errors.InvalidRequest) as refused:
        pay(ts, connection, topic, mode)
    assert "mysqlclient does not tell its password" in str(refused.value)
    assert "Client(..., database=open_connection)" in str(refused.value)
    assert (bank.notes(), values_in(broker.url, topic)) == ([], [])
    connection.close()


@pytest.mark.parametrize("driver", [MySQLdb, mysql.connector])
@pytest.mark.parametrize("autocommit", [True, False])
def test_what_the_user_has_begun_is_joined_and_not_committed(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, driver: Any, autocommit: bool
) -> None:
    connection = driver.connect(**bank.parameters(), autocommit=autocommit)
    cursor = connection.cursor()
    cursor.execute("begin")
    cursor.execute("insert into ledger (note) values ('before the block')")
    with pytest.raises(RuntimeError), ts.transaction(connection):
        raise RuntimeError
    assert bank.notes() == []
    cursor.execute("begin")
    cursor.execute("insert into ledger (note) values ('before the block')")
    pay(ts, connection, topic)
    assert (bank.notes(), values_in(broker.url, topic)) == (["before the block", "paid"], [1])
    connection.close()


@pytest.mark.parametrize("driver", [MySQLdb, mysql.connector])
def test_autocommit_that_a_statement_has_set_is_known(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, driver: Any
) -> None:
    connection = driver.connect(**bank.parameters())
    connection.cursor().execute("set autocommit = 1")
    with pytest.raises(ZeroDivisionError):
        pay(ts, connection, topic, then=fail)
    pay(ts, connection, topic)
    assert (bank.notes(), values_in(broker.url, topic)) == (["paid"], [1])
    connection.close()


def test_whether_mysqlclient_is_in_a_transaction_is_asked(bank: Bank) -> None:
    connection = MySQLdb.connect(**bank.parameters())
    cursor = connection.cursor()
    for autocommit in (False, True):
        connection.autocommit(autocommit)
        adapter = adapt_sync(connection)
        assert adapter.in_transaction is False
        cursor.execute("begin")
        cursor.execute("insert into ledger (note) values ('x')")
        assert adapter.in_transaction is True
        connection.rollback()
        assert adapter.in_transaction is False
    connection.close()


def test_an_unread_result_is_refused_with_both_halves_undone(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str
) -> None:
    many = "select * from seq_1_to_1000"
    connection = mysql.connector.connect(**bank.parameters())
    with pytest.raises(UnsupportedConnection, match="not read to its end"):
        pay(ts, connection, topic, then=lambda: connection.cursor().execute(many))
    pay(ts, connection, topic)  # the rollback has read it
    connection.close()
    streaming = MySQLdb.connect(**bank.parameters())
    cursor = streaming.cursor(MySQLdb.cursors.SSCursor)
    with pytest.raises(UnsupportedConnection, match="SSCursor"):
        pay(ts, streaming, topic, then=lambda: cursor.execute(many))
    assert not streaming.open  # nobody can commit later what is left in it
    assert (bank.notes(), values_in(broker.url, topic)) == (["paid"], [1])


@pytest.mark.parametrize(
    "options", [{"raise_on_warnings": True}, {"raw": True}, {"buffered": True}, {"consume_results": True}, {}]
)
def test_whatever_a_connection_of_mysql_connector_was_told(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, options: dict[str, Any]
) -> None:
    connection = mysql.connector.connect(**bank.parameters(), **options)
    create_tables(connection)
    pay(ts, connection, topic)
    pay(ts, connection, topic, "outbox")
    assert (bank.notes(), values_in(broker.url, topic)) == (["paid"] * 2, [1, 1])
    connection.close()


@pytest.mark.parametrize("options", [{"use_unicode": False}, {"cursorclass": MySQLdb.cursors.DictCursor}])
def test_whatever_a_connection_of_mysqlclient_was_told(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, options: dict[str, Any]
) -> None:
    connection = MySQLdb.connect(**bank.parameters(), **options)
    pay(ts, connection, topic)
    pay(ts, connection, topic, "outbox")
    assert (bank.notes(), values_in(broker.url, topic)) == (["paid"] * 2, [1, 1])
    connection.close()


def test_a_connection_of_mysql_connectors_pool_goes_back_to_it(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    pool = mysql.connector.pooling.MySQLConnectionPool(pool_name=topic, pool_size=1, **bank.parameters())
    with tallystick.Client(broker.url, group=group, wait=True) as ts:
        for _ in range(2):
            connection = pool.get_connection()
            pay(ts, connection, topic)
            connection.close()
    assert (bank.notes(), values_in(broker.url, topic)) == (["paid"] * 2, [1, 1])
    pool._remove_connections()


IN_C = """
import json, sys
import mysql.connector, tallystick
from tallystick.barrier import TransactionLost

url, group, topic, where = sys.argv[1:]
assert mysql.connector.HAVE_CEXT
connection = mysql.connector.connect(**json.loads(where), use_pure=False)
assert type(connection).__name__ == "CMySQLConnection"
insert = "insert into ledger (note) values (%s)"
with tallystick.Client(url, group=group, wait=True) as ts:
    for mode in ("check-back", "outbox"):
        with ts.transaction(connection, mode=mode) as tx:
            connection.cursor().execute(insert, ("paid",))
            tx.send(topic, 1)
    for end in (connection.rollback, lambda: connection.cursor().execute("rollback")):
        try:
            with ts.transaction(connection) as tx:
                connection.cursor().execute(insert, ("lost",))
                tx.send(topic, 2)
                end()
        except TransactionLost:
            pass
        else:
            sys.exit("not noticed")
    try:
        with ts.transaction(connection):
            connection.cursor().execute(insert, ("undone",))
            raise RuntimeError
    except RuntimeError:
        pass
connection.close()
"""


@pytest.mark.full
def test_mysql_connector_in_c(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    """In a process of its own: it brings an OpenSSL that may be newer than the one that this process has loaded."""
    import json

    libraries = Path(mysql.connector.__file__).parent.parent / "vendor"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    command = [sys.executable, "-c", IN_C, broker.url, group, topic, json.dumps(bank.parameters())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (bank.notes(), values_in(broker.url, topic)) == (["paid"] * 2, [1, 1])
