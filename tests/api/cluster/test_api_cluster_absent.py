"""One store of a cluster does not answer: whatever may go elsewhere does, and nobody who polls fails because of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from broker_clusters import BrokerCluster, running_cluster
from raw_client import RawClient
from servers import Server
from shared_stores import url_of
from tallystick.core.placing import store_for
from tallystick.store.kv import keys
from tallystick.store.kv.engine import Changes
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.opening import registry_at, server_at

pytestmark = pytest.mark.postgresql
STORES, ABSENT = 4, 1  # how many there are, and the number of the one that stays closed


def close_for_good(url: str, stores: int) -> None:
    """One of them, as a copy that broke off leaves it."""
    with closing(registry_at(url)) as registry, closing(server_at(url, ABSENT)) as server:
        registry.make(stores)
        server.create()
        engine = SharedEngine(server, server.claim("copier").epoch)
        changes = Changes()
        changes.keys["index"] = {keys.HALF_COPIED: b"elsewhere"}
        engine.write(changes)


@pytest.fixture
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    url = url_of(postgres, postgres.new_database())
    close_for_good(url, STORES)
    with running_cluster(url, brokers=2, stores=STORES, lease="20s") as made:
        yield made


def stores_of(cluster: BrokerCluster) -> list[str]:
    return [store["id"] for store in cluster.view()["stores"]]


def test_messages_without_a_key_go_to_a_store_that_answers(postgres: Server) -> None:
    """Also from a broker that has no other store."""
    url = url_of(postgres, postgres.new_database())
    close_for_good(url, 2)
    with running_cluster(url, brokers=2, stores=2, lease="20s") as cluster:
        for broker in cluster.brokers:
            with RawClient(broker.url) as client:
                for number in range(4):
                    answer = client.json("POST", "/v1/messages", {"messages": [{"topic": "any", "value": number}]})
                    assert answer.status == 201, answer
                    assert answer.json()["positions"][0]["queue"] % 2 != ABSENT


def test_who_receives_gets_what_the_other_stores_have(cluster: BrokerCluster) -> None:
    stores = stores_of(cluster)
    sent = [key for key in map("key-{}".format, range(20)) if store_for(key, stores) != stores[ABSENT]]
    with RawClient(cluster.brokers[0].url) as client:
        for key in sent:
            answer = client.json("POST", "/v1/messages", {"messages": [{"topic": "orders", "key": key, "value": 1}]})
            assert answer.status == 201
    for broker in cluster.brokers:
        got: list[str] = []
        with RawClient(broker.url, timeout=120) as client:
            while len(got) < len(sent):
                request = {"topic": "orders", "max": 3, "wait_ms": 5_000, "invisible_ms": 600_000}
                answer = client.json("POST", f"/v1/groups/at-{broker.port}/receive", request)
                assert answer.status == 200, answer
                got += [one["message"]["key"] for one in answer.json()["deliveries"]]
            nothing = client.json("POST", f"/v1/groups/at-{broker.port}/receive", {"topic": "orders", "wait_ms": 10})
            assert (nothing.status, nothing.json()["deliveries"]) == (200, [])
        assert sorted(got) == sorted(sent)


def test_who_waits_to_answer_checks_is_not_kept_by_it(cluster: BrokerCluster) -> None:
    for broker in cluster.brokers:
        with RawClient(broker.url) as client:
            answer = client.json("POST", "/v1/checks/poll", {"group": "shop", "member": "m", "max": 10, "wait_ms": 10})
            assert (answer.status, answer.json()["checks"]) == (200, [])
