"""Under gevent: threads are greenlets, locks and sockets are patched, and nobody may stop the one real thread."""

from __future__ import annotations

import importlib.util

import pytest
from client_support import Bank, values_in
from test_client_forks import run

from brokers import BrokerProcess

pytestmark = pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed")

GREENLETS = """
from gevent import monkey

monkey.patch_all()
import sqlite3, sys
import gevent
import tallystick

url, path, topic, mode = sys.argv[1:]
ts = tallystick.Client(url, group="gevent")


def work(number):
    connection = sqlite3.connect(path, timeout=0)  # a lock that another greenlet holds is not waited for
    for turn in range(5):
        while True:
            try:
                with ts.transaction(connection, mode=mode, check=tallystick.CheckBack(after=600)) as tx:
                    connection.execute("insert into ledger values (?)", (f"{number}{turn}",))
                    tx.send(topic, number * 10 + turn)
                break
            except sqlite3.OperationalError:
                gevent.sleep(0.005)
    connection.close()


beats = []
heart = gevent.spawn(lambda: [(beats.append(1), gevent.sleep(0.001)) for _ in range(10_000)])
gevent.joinall([gevent.spawn(work, number) for number in range(4)], raise_error=True)
heart.kill()
assert len(beats) > 20 or mode == "outbox", "other greenlets stand still while a block waits for the broker"
ts.close()
"""


@pytest.mark.parametrize("mode", ["check-back", "outbox"])
def test_blocks_in_greenlets(broker: BrokerProcess, bank: Bank, topic: str, mode: str) -> None:
    run(GREENLETS, broker.url, str(bank.path), topic, mode)
    expected = [number * 10 + turn for number in range(4) for turn in range(5)]
    assert values_in(broker.url, topic) == expected
    assert bank.notes() == [f"{number:02}" for number in expected]


TWO_CLIENTS = """
from gevent import monkey

monkey.patch_all()
import sqlite3, sys
import tallystick

url, path, topic = sys.argv[1:]
connection = sqlite3.connect(path)
first = tallystick.Client(url, group="gevent", check=tallystick.CheckBack(after=600))
second = tallystick.Client(url, group="gevent-2", check=tallystick.CheckBack(after=600))
for turn, ts in enumerate((first, second, first)):
    with ts.transaction(connection, wait=True) as tx:
        connection.execute("insert into ledger values (?)", (str(turn),))
        tx.send(topic, turn)
first.close()
second.send(topic, 3)
third = tallystick.Client(url)
third.send(topic, 4)
second.close()
third.send(topic, 5)
third.close()
tallystick.Client(url).send(topic, 6)  # closed at exit
"""


def test_clients_of_one_process_share_its_event_loop(broker: BrokerProcess, bank: Bank, topic: str) -> None:
    run(TWO_CLIENTS, broker.url, str(bank.path), topic)
    assert values_in(broker.url, topic) == [0, 1, 2, 3, 4, 5, 6]
    assert bank.notes() == ["0", "1", "2"]
