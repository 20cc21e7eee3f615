"""Brokers and clients live through the failover of the engine that they share: a standby takes over, work goes on."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from uuid import uuid4

import pytest
from cluster_load import Producer, check_what_is_there, goes_on, stop

import tallystick
from broker_clusters import BrokerCluster, running_cluster
from eventually import eventually, eventually_equal
from server_clusters import postgres_pair
from tallystick.core.errors import TallystickError

pytestmark = [pytest.mark.fault, pytest.mark.full, pytest.mark.timeout(900)]

PATIENT = 120.0  # of a client whose operations are never to fail, however busy the machine is
TOPIC = "orders"


class Sender(threading.Thread):
    """Sends with the client library, and keeps what was acknowledged."""

    def __init__(self, ts: tallystick.Client) -> None:
        super().__init__(name="sender", daemon=True)
        self._ts, self.enough = ts, threading.Event()
        self.acknowledged: list[str] = []
        self.failures: list[TallystickError] = []
        self.longest = 0.0

    def run(self) -> None:
        for number in itertools.count():
            if self.enough.wait(0.01):
                return
            began = time.monotonic()
            try:
                self.acknowledged.append(self._ts.send(TOPIC, number, key=f"key-{number % 16}").gid or "")
            except TallystickError as failure:
                self.failures.append(failure)
            self.longest = max(self.longest, time.monotonic() - began)

    def goes_on(self) -> None:
        wanted = len(self.acknowledged) + 20
        eventually(lambda: self.failures or len(self.acknowledged) >= wanted, "what is sent is acknowledged")
        assert not self.failures


@pytest.mark.postgresql
def test_brokers_and_clients_go_on_when_the_standby_of_postgresql_takes_over() -> None:
    """None of them is started again, or told where the new primary is."""
    with (
        postgres_pair() as pair,
        running_cluster(pair.url, brokers=3, stores=4, check_after="1h") as cluster,
        tallystick.Client(cluster.urls, timeout=PATIENT) as ts,
    ):
        ts.create_topic(TOPIC)
        sender, producers = Sender(ts), [Producer(cluster, f"p{number}-{uuid4().hex[:6]}") for number in range(3)]
        for one in (sender, *producers):
            one.start()
        all_go_on(sender, producers)
        processes = [broker.pid for broker in cluster.brokers]
        failed_over = time.monotonic()
        pair.fail_over()
        all_go_on(sender, producers)
        print(f"all go on {time.monotonic() - failed_over:.2f} s after it, the longest wait: {sender.longest:.2f} s")
        assert [broker.pid for broker in cluster.brokers] == processes
        assert all(broker.running for broker in cluster.brokers)

        cluster.brokers[0].kill()  # and the new primary is where they take over from each other
        all_go_on(sender, producers)
        sender.enough.set()
        sender.join(PATIENT)
        stop(producers)
        check_what_is_there(cluster, producers)
        eventually_equal(lambda: sent(ts, cluster), Counter(sender.acknowledged))


def all_go_on(sender: Sender, producers: list[Producer]) -> None:
    goes_on(producers)
    sender.goes_on()


def sent(ts: tallystick.Client, cluster: BrokerCluster) -> Counter[str]:
    """Every visible message, as one broker shows all queues of the cluster."""
    url = cluster.brokers[-1].url
    found: Counter[str] = Counter()
    for queue in range(ts.topic(TOPIC, broker=url).queues):
        offset = 0
        while (fetched := ts.fetch(TOPIC, queue, offset, broker=url)).messages:
            found.update(message.gid for message in fetched.messages)
            offset = fetched.next
    return found
