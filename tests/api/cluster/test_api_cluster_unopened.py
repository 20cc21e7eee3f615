"""A broker owns stores that cannot be opened: it takes no work, and says why, as does every other that is asked."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest

from broker_clusters import BrokerCluster
from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import RawClient
from servers import Server
from shared_stores import url_of
from tallystick.store.kv import keys
from tallystick.store.kv.engine import Changes
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.opening import registry_at, server_at

pytestmark = pytest.mark.postgresql
STORES = 2


def close_for_good(url: str) -> None:
    """All of them, as copies that broke off leave them."""
    with closing(registry_at(url)) as registry:
        registry.make(STORES)
    for number in range(STORES):
        with closing(server_at(url, number)) as server:
            server.create()
            engine = SharedEngine(server, server.claim("copier").epoch)
            changes = Changes()
            changes.keys["index"] = {keys.HALF_COPIED: b"elsewhere"}
            engine.write(changes)


@pytest.fixture
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    url = url_of(postgres, postgres.new_database())
    close_for_good(url)
    settings = {"store": url, "stores": STORES, "lease": "20s", "allow_weak_durability": True}
    with running_broker(start=False, **settings) as one, running_broker(start=False, **settings) as other:
        for broker in (one, other):
            broker.spawn()  # and not waited for: it does not get ready
        made = BrokerCluster([one, other], STORES)
        made.wait_until_spread()
        yield made


def readiness(broker: BrokerProcess) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{broker.url}/readyz", timeout=10) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)["reason"]


def test_a_broker_of_whose_stores_none_can_be_opened_is_not_ready(cluster: BrokerCluster) -> None:
    for broker in cluster.brokers:
        eventually(lambda broker=broker: "half a copy of elsewhere" in readiness(broker)[1], "it says why")
        assert readiness(broker)[0] == 503


def test_whoever_asks_any_broker_is_told_why_the_store_cannot_be_opened(cluster: BrokerCluster) -> None:
    for broker in cluster.brokers:
        eventually(lambda broker=broker: "half a copy" in readiness(broker)[1], "it has tried")
    for broker in cluster.brokers:
        for store in cluster.view()["stores"]:
            for path in ("/v1/messages", f"/stores/{store['id']}/v1/messages"):
                with RawClient(broker.url) as client:
                    answer = client.json("POST", path, {"messages": [{"topic": "orders", "value": 1}]})
                assert (answer.status, answer.json()["code"]) == (503, "storage_failed")
                assert "half a copy of elsewhere" in answer.json()["detail"]


def test_what_is_tried_again_and_again_leaves_no_connections_open(cluster: BrokerCluster, postgres: Server) -> None:
    """Four times a second for each store: some twenty tries are made while this looks on."""
    eventually(lambda: "half a copy" in readiness(cluster.brokers[0])[1], "it has tried")
    before = connections(postgres)
    time.sleep(3)
    assert connections(postgres) <= before + 2 * STORES


def connections(server: Server) -> int:
    ((count,),) = server.execute("select count(*) from pg_stat_activity where backend_type = 'client backend'")
    return int(count)
