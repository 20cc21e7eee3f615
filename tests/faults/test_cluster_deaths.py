"""Brokers of a cluster are killed, put to sleep and sent away under load: what was acknowledged is there, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from uuid import uuid4

import pytest
from cluster_load import Producer, check_what_is_there, goes_on, owned_by_others, stop

from broker_clusters import BrokerCluster, running_cluster
from eventually import eventually
from shared_stores import SHARED, new_place

pytestmark = pytest.mark.fault


@pytest.fixture(params=SHARED)
def cluster(request: pytest.FixtureRequest) -> Iterator[BrokerCluster]:
    with running_cluster(new_place(request.param, request), brokers=3, stores=4, lease="2s", check_after="1h") as made:
        yield made


def test_what_was_acknowledged_is_there_once_whoever_is_killed_asleep_or_sent_away(cluster: BrokerCluster) -> None:
    producers = [Producer(cluster, f"p{number}-{uuid4().hex[:6]}") for number in range(4)]
    for one in producers:
        one.start()
    goes_on(producers)
    killed, asleep, sent_away = cluster.brokers
    killed.kill()
    goes_on(producers)
    eventually(lambda: killed.url not in cluster.owners().values() and len(cluster.owners()) == 4, "a takeover")
    killed.start()
    cluster.wait_until_spread()

    os.kill(asleep.pid, signal.SIGSTOP)
    eventually(lambda: owned_by_others(cluster, asleep, killed), "a takeover from the one who sleeps")
    goes_on(producers)
    os.kill(asleep.pid, signal.SIGCONT)  # in the middle of whatever it was at
    goes_on(producers)

    sent_away.stop()
    goes_on(producers)
    stop(producers)
    cluster.brokers.remove(sent_away)
    check_what_is_there(cluster, producers)
