"""The shared engine is away: whoever asks is told that, at every broker and for every store."""

from __future__ import annotations

import itertools
import re

import pytest

from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from eventually import eventually
from raw_client import RawClient
from servers import DATABASE, postgres_server
from shared_stores import url_of

LEASE_MS = 1_000


def blind(cluster: BrokerCluster, broker: BrokerProcess) -> bool:
    """For so long that nobody would be taken for alive, if that could be seen."""
    view = cluster.view(broker)
    return view["engine_away"] and view["age_ms"] > 2 * LEASE_MS


def takes(broker: BrokerProcess, store: str) -> bool:
    with RawClient(broker.url) as client:
        content = {"messages": [{"topic": "orders", "value": 1}]}
        return bool(client.json("POST", f"/stores/{store}/v1/messages", content).status == 201)


@pytest.mark.postgresql
def test_who_asks_any_broker_for_any_store_is_told_that_the_engine_is_away() -> None:
    with (
        postgres_server() as server,
        running_cluster(url_of(server, DATABASE), brokers=2, stores=2, lease=f"{LEASE_MS}ms") as cluster,
    ):
        stores = [store["id"] for store in cluster.view()["stores"]]
        server.kill()
        for broker in cluster.brokers:
            eventually(lambda broker=broker: blind(cluster, broker), "a broker that sees nothing")
        for broker, store in itertools.product(cluster.brokers, stores):
            with RawClient(broker.url) as client:
                content = {"messages": [{"topic": "orders", "value": 1}]}
                answer = client.json("POST", f"/stores/{store}/v1/messages", content)
            assert (answer.status, answer.json()["code"]) == (503, "storage_failed")
            assert re.search("refused|closed", answer.json()["detail"]), "the engine's own words"
            assert "has stopped" not in answer.json()["title"]


@pytest.mark.postgresql
def test_the_log_says_of_each_store_once_that_it_is_away_and_once_that_it_is_back() -> None:
    with (
        postgres_server() as server,
        running_cluster(url_of(server, DATABASE), brokers=1, stores=2, lease=f"{LEASE_MS}ms") as cluster,
    ):
        (broker,) = cluster.brokers
        stores = [store["id"] for store in cluster.view()["stores"]]
        # A store that has an owner may still be opening; the log has nothing to say of that one.
        eventually(lambda: all(takes(broker, store) for store in stores), "every store takes messages")
        server.kill()
        eventually(lambda: all(f"store {store} takes no work: " in broker.log_text() for store in stores), "it is told")
        eventually(lambda: blind(cluster, broker), "some time goes by")
        server.start()
        eventually(lambda: all(f"store {store} works again" in broker.log_text() for store in stores), "it is back")
        log = broker.log_text()
    for store in stores:
        told = [line for line in log.splitlines() if f"store {store} " in line and "takes no work" in line]
        assert len(told) == 1, log
        assert re.search("refused|closed|terminat", told[0]), "the engine's own words, on the same line"
    assert not re.search("(has|have) to wait", log), log
    assert not [line for line in log.splitlines() if line and not re.match(r"\d{4}-\d\d-\d\dT", line)], log
