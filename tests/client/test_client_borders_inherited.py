"""A connection that was opened before a fork is refused in the child, whether or not a block of the parent used it."""

from __future__ import annotations

import gc
import json
import sqlite3
from pathlib import Path

import pytest
from client_support import Bank, messages_in
from test_client_forks import run

from brokers import BrokerProcess
from servers import Server
from tallystick.barrier.adapters import inherited_connections
from tallystick.barrier.adapters.inherited_connections import refuse_inherited_file

OPENED = """
import importlib, json, os, sys
import tallystick
from tallystick.barrier import UnsupportedConnection

kind, url, where, topic, group, used = sys.argv[1:]
where = json.loads(where)


def opened():
    if kind == "sqlite":
        import sqlite3
        return sqlite3.connect(where, timeout=30)
    if kind == "sqlalchemy":
        return engine.connect()
    return importlib.import_module(kind).connect(**where)


if kind == "sqlalchemy":
    import sqlalchemy
    engine = sqlalchemy.create_engine(where)
# mysqlclient does not tell its password.
ts = tallystick.Client(url, group=group, **({"database": opened} if kind == "MySQLdb" else {}))


def block(connection, note):
    insert = f"insert into ledger values ('{note}')"
    with ts.transaction(connection) as tx:
        if kind == "sqlalchemy":
            connection.execute(sqlalchemy.text(insert))
        else:
            connection.cursor().execute(insert)
        tx.send(topic, note)


connection = opened()
if used == "used":
    block(connection, "parent")
child = os.fork()
if child == 0:
    try:
        block(connection, "lost")
    except UnsupportedConnection as refused:
        assert "before the process was forked" in str(refused)
    else:
        os._exit(3)
    if kind == "sqlalchemy":
        engine.dispose(close=False)
    own = opened()
    block(own, "child")
    own.close()
    ts.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
block(connection, "parent again")
ts.close()
connection.close()
"""


def check(kind: str, broker: BrokerProcess, bank: Bank, where: object, topic: str, group: str, used: str) -> None:
    run(OPENED, kind, broker.url, json.dumps(where), topic, group, used)
    expected = ["child", *(["parent"] if used else []), "parent again"]
    assert bank.notes() == expected
    assert sorted(message.text for message in messages_in(broker.url, topic)) == expected


@pytest.mark.postgresql
@pytest.mark.parametrize("used", ["used", ""])
def test_with_psycopg(broker: BrokerProcess, postgres: Server, topic: str, group: str, used: str) -> None:
    bank = Bank("postgresql", postgres)
    check("psycopg", broker, bank, bank.parameters(), topic, group, used)


@pytest.mark.postgresql
@pytest.mark.full
@pytest.mark.parametrize("used", ["used", ""])
def test_with_psycopg2(broker: BrokerProcess, postgres: Server, topic: str, group: str, used: str) -> None:
    bank = Bank("postgresql", postgres)
    check("psycopg2", broker, bank, bank.parameters(), topic, group, used)


ASYNCPG = """
import asyncio, json, os, sys
import asyncpg, tallystick
from tallystick.barrier import UnsupportedConnection

url, where, topic, group, used = sys.argv[1:]
where = json.loads(where)


async def block(connection, note):
    async with tallystick.AsyncClient(url, group=group) as ts, ts.transaction(connection) as tx:
        await connection.execute(f"insert into ledger values ('{note}')")
        tx.send(topic, note)


async def in_child():
    try:
        await block(connection, "lost")
    except UnsupportedConnection as refused:
        assert "before the process was forked" in str(refused)
    else:
        os._exit(3)
    own = await asyncpg.connect(**where)
    await block(own, "child")
    await own.close()


loop = asyncio.new_event_loop()
connection = loop.run_until_complete(asyncpg.connect(**where))
if used == "used":
    loop.run_until_complete(block(connection, "parent"))
child = os.fork()
if child == 0:
    asyncio.new_event_loop().run_until_complete(in_child())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
loop.run_until_complete(block(connection, "parent again"))
loop.run_until_complete(connection.close())
loop.close()
"""


@pytest.mark.postgresql
@pytest.mark.full
@pytest.mark.parametrize("used", ["used", ""])
def test_with_asyncpg(broker: BrokerProcess, postgres: Server, topic: str, group: str, used: str) -> None:
    bank = Bank("postgresql", postgres)
    run(ASYNCPG, broker.url, json.dumps(bank.asyncpg_parameters()), topic, group, used)
    assert bank.notes() == ["child", *(["parent"] if used else []), "parent again"]


@pytest.mark.mariadb
@pytest.mark.full
@pytest.mark.parametrize("used", ["used", ""])
def test_with_pymysql(broker: BrokerProcess, mariadb: Server, topic: str, group: str, used: str) -> None:
    bank = Bank("mysql", mariadb)
    check("pymysql", broker, bank, bank.parameters(), topic, group, used)


@pytest.mark.mariadb
@pytest.mark.full
@pytest.mark.parametrize("driver", ["MySQLdb", "mysql.connector"])
@pytest.mark.parametrize("used", ["used", ""])
def test_with_other_drivers_of_mysql(
    broker: BrokerProcess, mariadb: Server, topic: str, group: str, used: str, driver: str
) -> None:
    bank = Bank("mysql", mariadb)
    check(driver, broker, bank, bank.parameters(), topic, group, used)


def test_with_sqlite3_if_a_block_of_the_parent_used_it(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    """One that was only opened does not tell its age: docs/explanation/borders.md says so."""
    check("sqlite", broker, bank, str(bank.path), topic, group, "used")


@pytest.mark.parametrize("used", ["used", ""])
def test_with_sqlalchemy_over_sqlite(broker: BrokerProcess, bank: Bank, topic: str, group: str, used: str) -> None:
    check("sqlalchemy", broker, bank, f"sqlite:///{bank.path}", topic, group, used)


ON_A_THREAD = """
import asyncio, os, sys
import aiosqlite
from tallystick.barrier import UnsupportedConnection, adapt_async


async def main():
    connection = await aiosqlite.connect(sys.argv[1])
    child = os.fork()
    if child == 0:
        try:
            await adapt_async(connection).begin()
        except UnsupportedConnection as refused:
            os._exit(0 if "before the process was forked" in str(refused) else 4)
        os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
    await adapt_async(connection).begin()  # the parent's goes on
    await connection.close()


asyncio.run(main())
"""


def test_with_aiosqlite_whose_thread_the_child_does_not_have(bank: Bank) -> None:
    run(ON_A_THREAD, str(bank.path))


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # dropped on purpose
def test_nothing_is_kept_of_connections_that_are_gone(tmp_path: Path) -> None:
    before = len(inherited_connections._marks)
    for _ in range(50):
        closed, dropped = sqlite3.connect(tmp_path / "a.db"), sqlite3.connect(tmp_path / "a.db")
        for connection in (closed, dropped):
            refuse_inherited_file(connection)
            refuse_inherited_file(connection)
        closed.close()
    del closed, dropped, connection
    gc.collect()
    assert len(inherited_connections._marks) <= before
