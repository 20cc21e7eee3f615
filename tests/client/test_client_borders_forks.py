"""Processes that are forked: a child and its parent never speak over one socket."""

from __future__ import annotations

import pytest
from client_support import Bank, values_in
from test_client_forks import run

from brokers import BrokerProcess
from eventually import eventually
from servers import Server

pytestmark = pytest.mark.postgresql

CHECK_BACKS = """
import os, sys, time
import sqlalchemy, tallystick
from tallystick.client.transactions.modes import CheckBackBlock
from tallystick.client.transactions.script import nothing

url, database, topic, group = sys.argv[1:]
engine = sqlalchemy.create_engine(database)
ts = tallystick.Client(url, group=group)
used = []
sqlalchemy.event.listen(engine, "checkout", lambda connection, *_: used.append(connection))


def block(engine, number):
    with engine.connect() as connection, ts.transaction(connection) as tx:
        connection.execute(sqlalchemy.text(f"insert into ledger values ('{number:02}')"))
        tx.send(topic, number)
    return tx.gid


block(engine, 0)  # from here on the client knows a way into the database, by way of this engine
while ts._core.databases._unverified:
    time.sleep(0.01)
with engine.connect() as connection:
    shared = connection.connection.driver_connection  # it lies in the pool when the process is forked
CheckBackBlock.after_commit = lambda *_: nothing()  # and the broker has to ask for every outcome
child = os.fork()
used.clear()
if child == 0:
    own = sqlalchemy.create_engine(database)
    gids = [block(own, number) for number in range(10, 15)]
else:
    gids = [block(engine, number) for number in range(20, 40)]
deadline = time.monotonic() + 30
while any(ts.outcome(gid) is None for gid in gids):
    assert time.monotonic() < deadline
    time.sleep(0.05)
assert used and (shared in used) == bool(child), "a connection of the parent's was used in the child"
ts.close()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
engine.dispose()
"""


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+psycopg2"])
def test_check_backs_in_a_child_leave_the_pool_of_the_parent_alone(
    broker: BrokerProcess, postgres: Server, topic: str, group: str, driver: str
) -> None:
    bank = Bank("postgresql", postgres)
    run(CHECK_BACKS, broker.url, bank.url(driver).render_as_string(hide_password=False), topic, group)
    expected = [0, *range(10, 15), *range(20, 40)]
    assert bank.notes() == [f"{number:02}" for number in expected]
    eventually(lambda: values_in(broker.url, topic) == expected, "a message for every row")


INHERITED = """
import os, sys
import psycopg, sqlalchemy, tallystick
from tallystick.barrier import UnsupportedConnection

url, database, conninfo, topic, group = sys.argv[1:]
engine = sqlalchemy.create_engine(database)
plain = psycopg.connect(conninfo)
ts = tallystick.Client(url, group=group)
with engine.connect() as connection:
    connection.execute(sqlalchemy.text("select 1"))  # now it lies in the pool


def block(connection, insert):
    with ts.transaction(connection) as tx:
        connection.execute(insert)
        tx.send(topic, 1)


block(plain, "insert into ledger values ('parent')")
child = os.fork()
if child == 0:
    text = sqlalchemy.text("insert into ledger values ('child')")
    for connection in (plain, engine.connect()):
        try:
            block(connection, "insert into ledger values ('lost')" if connection is plain else text)
        except UnsupportedConnection as refused:
            assert "engine.dispose(close=False)" in str(refused)
        else:
            raise AssertionError("not refused")
    del connection
    engine.dispose(close=False)  # as the error says
    with engine.connect() as connection:
        block(connection, text)
    ts.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
block(plain, "insert into ledger values ('parent again')")
ts.close()
plain.close()
engine.dispose()
"""


def test_a_connection_of_the_parents_is_refused_in_the_child(
    broker: BrokerProcess, postgres: Server, topic: str, group: str
) -> None:
    import psycopg

    bank = Bank("postgresql", postgres)
    url = bank.url("postgresql+psycopg").render_as_string(hide_password=False)
    run(INHERITED, broker.url, url, psycopg.conninfo.make_conninfo(**bank.parameters()), topic, group)
    assert bank.notes() == ["child", "parent", "parent again"]
    assert values_in(broker.url, topic) == [1, 1, 1]
