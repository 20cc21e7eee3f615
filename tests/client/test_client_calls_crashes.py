"""A producer that dies: its calls are made if its local transaction was committed, and never if it was not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from client_support import Bank

import tallystick
from brokers import BrokerProcess, running_broker
from busi import Busi, running_busi
from eventually import eventually

pytestmark = pytest.mark.fault

# The process kills itself around its local commit; `sys.argv`: broker, group, gid, database, service, moment.
PRODUCER = """
import os, signal, sqlite3, sys
import tallystick

url, group, gid, path, service, moment, prepare = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(sqlite3.Connection):
    def commit(self):
        if moment == "before the local commit":
            die()
        super().commit()
        die()

connection = sqlite3.connect(path, factory=Dying)
with tallystick.Client(url, group=group, wait=True).transaction(connection, gid=gid, prepare=prepare) as tx:
    tx.call(service + "/one", {"amount": 30})
    tx.call(service + "/two", {"amount": 40})
    if prepare == "early":
        tx.prepare()
    connection.execute("insert into ledger (note) values ('paid')")
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="500ms", check_interval="300ms") as process:
        yield process


@pytest.fixture
def busi() -> Iterator[Busi]:
    with running_busi() as service:
        yield service


def run_producer(broker: BrokerProcess, bank: Bank, busi: Busi, group: str, moment: str, prepare: str) -> str:
    gid = f"{group}-gid"
    arguments = [broker.url, group, gid, str(bank.path), busi.url, moment, prepare]
    done = subprocess.run([sys.executable, "-c", PRODUCER, *arguments], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return gid


@pytest.mark.parametrize("prepare", ["late", "early"])
def test_killed_between_the_local_commit_and_the_brokers(
    broker: BrokerProcess, bank: Bank, busi: Busi, group: str, prepare: str
) -> None:
    gid = run_producer(broker, bank, busi, group, "after the local commit", prepare)
    assert bank.notes() == ["paid"]
    with tallystick.Client(broker.url, group=group, database=bank.open, wait=True) as ts:
        eventually(lambda: ts.calls(gid).state == "done")
        assert ts.outcome(gid) == "committed"
    assert [(called.path, called.body) for called in busi.calls(gid)] == [
        ("/one", b'{"amount":30}'),
        ("/two", b'{"amount":40}'),
    ]


@pytest.mark.parametrize("prepare", ["late", "early"])
def test_killed_before_the_local_commit(
    broker: BrokerProcess, bank: Bank, busi: Busi, group: str, prepare: str
) -> None:
    gid = run_producer(broker, bank, busi, group, "before the local commit", prepare)
    assert bank.notes() == []
    with tallystick.Client(broker.url, group=group, database=bank.open, wait=True) as ts:
        eventually(lambda: ts.outcome(gid) == "rolled_back")
        ts.call(f"{busi.url}/later", gid=f"{gid}-later", wait=True)
    assert busi.calls(gid) == []


def test_a_broker_that_is_killed_after_the_commit_makes_the_call(bank: Bank, busi: Busi, group: str) -> None:
    with running_broker(call_retry_first="200ms") as own, tallystick.Client(own.url, group=group, wait=True) as ts:
        with bank.connection() as connection, ts.transaction(connection) as tx:
            bank.note(connection, "paid")
            tx.call(f"{busi.url}/late", 1, delay=1.0)
        own.kill()
        own.restart()
        eventually(lambda: ts.calls(tx.gid).state == "done")
    assert len(busi.calls(tx.gid)) == 1
