"""Tokens of a cluster are on every store, and what was done is one log."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from eventually import eventually
from raw_client import Answer, RawClient
from servers import Server
from shared_stores import url_of
from tallystick.broker.cluster.visiting import visited
from tallystick.broker.config import load_config
from tallystick.core.access import Grant
from tallystick.core.token_records import TokenRecord
from tallystick.store.protocol import Audited, PutToken

pytestmark = pytest.mark.postgresql
STORES = 3
NOW = time.time_ns() // 1_000_000 - 3_600_000


@pytest.fixture(scope="module")
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    with running_cluster(url_of(postgres, postgres.new_database()), brokers=2, stores=STORES, lease="20s") as made:
        yield made


@pytest.fixture
def clients(cluster: BrokerCluster) -> Iterator[list[RawClient]]:
    made = [RawClient(broker.url) for broker in cluster.brokers]
    yield made
    for client in made:
        client.close()


def create(client: RawClient, name: str, prefix: str = "") -> Answer:
    return client.json("POST", f"{prefix}/v1/tokens", {"name": name, "roles": ["reader"]})


def tokens(client: RawClient, prefix: str = "") -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in client.json("GET", f"{prefix}/v1/tokens").json()["tokens"]}


def on_stores(client: RawClient, cluster: BrokerCluster, name: str) -> list[str]:
    """The id under which each store knows the token, where it does."""
    stores = [f"/stores/{one['id']}" for one in cluster.view()["stores"]]
    return [found["id"] for store in stores if (found := tokens(client, store).get(name))]


def test_a_token_is_made_on_every_store_and_revoked_on_every_store(
    cluster: BrokerCluster, clients: list[RawClient]
) -> None:
    one, other = clients
    made = create(one, "everywhere").json()
    assert on_stores(other, cluster, "everywhere") == [made["id"]] * STORES
    assert "missing_on" not in tokens(other)["everywhere"]
    assert other.json("DELETE", "/v1/tokens/everywhere").status == 204
    for client in clients:
        assert on_stores(client, cluster, "everywhere") == []
    again = one.json("DELETE", "/v1/tokens/everywhere")
    assert (again.status, again.problem().code) == (404, "not_found")


def test_a_name_that_one_store_has_for_another_token_is_refused_and_nothing_is_left_elsewhere(
    cluster: BrokerCluster, clients: list[RawClient]
) -> None:
    stores = [one["id"] for one in cluster.view()["stores"]]
    for number, store in enumerate(stores):
        name = f"half-{number}"
        there = create(clients[0], name, f"/stores/{store}").json()["id"]
        refused = create(clients[1], name)
        assert (refused.status, refused.problem().code) == (409, "conflict")
        assert store in refused.problem().detail
        assert on_stores(clients[0], cluster, name) == [there]
        assert tokens(clients[1])[name]["missing_on"] == [one for one in stores if one != store]
        assert clients[1].json("DELETE", f"/v1/tokens/{name}").status == 204
        assert on_stores(clients[0], cluster, name) == []


def test_of_two_who_want_a_name_at_different_brokers_one_wins(cluster: BrokerCluster, clients: list[RawClient]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for number in range(10):
            answers = list(pool.map(lambda client: create(client, f"race-{number}"), clients))  # noqa: B023
            assert sorted(answer.status for answer in answers) == [201, 409]
            (winner,) = [answer.json()["id"] for answer in answers if answer.status == 201]
            assert on_stores(clients[0], cluster, f"race-{number}") == [winner] * STORES


def test_an_owner_that_does_not_answer_is_told_and_the_token_is_taken_back(postgres: Server) -> None:
    url = url_of(postgres, postgres.new_database())
    with running_cluster(url, brokers=2, stores=2, lease="2s") as cluster, RawClient(cluster.brokers[0].url) as client:
        sleeper = cluster.brokers[1]
        (its,) = [store for store, owner in cluster.owners().items() if owner == sleeper.url]
        assert create(client, "before").status == 201
        _send(sleeper, signal.SIGSTOP)
        try:
            refused = create(client, "never")
            assert (refused.status, its in refused.problem().detail) == (503, True), refused
            eventually(lambda: tokens(client).keys() == {"before"}, "the token to be taken back")
            assert on_stores(client, cluster, "never") == []
        finally:
            _send(sleeper, signal.SIGCONT)
        eventually(lambda: create(client, "never").status == 201, "the name to be free")


def _send(broker: BrokerProcess, sent: signal.Signals) -> None:
    assert broker.process is not None
    os.kill(broker.process.pid, sent)


def test_a_revocation_that_does_not_reach_a_store_says_so(postgres: Server) -> None:
    url = url_of(postgres, postgres.new_database())
    with running_cluster(url, brokers=2, stores=2, lease="2s") as cluster, RawClient(cluster.brokers[0].url) as client:
        sleeper = cluster.brokers[1]
        (its,) = [store for store, owner in cluster.owners().items() if owner == sleeper.url]
        assert create(client, "stays").status == 201
        _send(sleeper, signal.SIGSTOP)
        try:
            refused = client.json("DELETE", "/v1/tokens/stays")
            assert (refused.status, its in refused.problem().detail) == (503, True), refused
            assert "revoke it again" in refused.problem().detail
        finally:
            _send(sleeper, signal.SIGCONT)
        assert eventually(lambda: client.json("DELETE", "/v1/tokens/stays").status, "an answer") in (204, 404)
        assert on_stores(client, cluster, "stays") == []


# --- the audit log -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def logged(postgres: Server) -> Iterator[RawClient]:
    """Deeds of three stores, woven into each other, and one that was done on all of them."""
    url = url_of(postgres, postgres.new_database())
    config = load_config(flags={"store": url, "stores": STORES, "allow_weak_durability": True}, environ={})
    with visited(config, "a test") as stores:
        for number in range(20):
            store = stores[(number * 7) % STORES]
            store.write([deed(f"d{number:02}", ("ann", "bob")[number % 2])], NOW + number * 10)
        for number, store in enumerate(stores):
            store.write([deed("all", "ann")], NOW + 1_000 + number)
    with running_cluster(url, brokers=2, stores=STORES) as cluster, RawClient(cluster.brokers[1].url) as client:
        yield client


def deed(subject: str, who: str) -> Audited:
    record = TokenRecord(subject, subject, "digest", (Grant(("reader",)),), NOW)
    return Audited(PutToken(record), who, "token", "10.0.0.1", "create_token", subject)


def pages(client: RawClient, limit: int, query: str = "") -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        page = client.json("GET", f"/v1/audit?limit={limit}{after}{query}").json()
        found += [one["subject"] for one in page["lines"]]
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def test_the_log_of_a_cluster_is_in_order_of_time_and_a_deed_on_every_store_is_told_once(logged: RawClient) -> None:
    assert pages(logged, 100) == ["all", *(f"d{number:02}" for number in reversed(range(20)))]


@pytest.mark.parametrize("limit", [3, 4, 7])
def test_its_pages_leave_nothing_out_and_show_nothing_twice(logged: RawClient, limit: int) -> None:
    expected = [f"d{number:02}" for number in reversed(range(20))]
    found = pages(logged, limit)
    assert [one for one in found if one != "all"] == expected
    assert found[0] == "all"
    assert pages(logged, limit, "&who=bob") == [one for one in expected if int(one[1:]) % 2]
    assert pages(logged, limit, f"&since={NOW + 170}")[-3:] == ["d19", "d18", "d17"]


@pytest.fixture(scope="module")
def everywhere(postgres: Server) -> Iterator[RawClient]:
    """Ten deeds that were done on all of three stores, the second and the third at the same time."""
    url = url_of(postgres, postgres.new_database())
    config = load_config(flags={"store": url, "stores": STORES, "allow_weak_durability": True}, environ={})
    with visited(config, "a test") as stores:
        for number in range(10):
            for place, store in enumerate(stores):
                order = {1: 2, 2: 1}.get(number, number) if place == 1 else number  # the second store had it first
                store.write([deed(f"e{order}", "ann")], NOW + number * 10 + place)
    with running_cluster(url, brokers=2, stores=STORES) as cluster, RawClient(cluster.brokers[1].url) as client:
        yield client


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 100])
def test_a_page_of_the_log_tears_no_deed(everywhere: RawClient, limit: int) -> None:
    found = pages(everywhere, limit)
    assert sorted(found) == [f"e{number}" for number in range(10)]
    assert found[:7] == [f"e{number}" for number in range(9, 2, -1)]


def test_without_access_control_a_deed_on_all_stores_has_one_source(
    cluster: BrokerCluster, clients: list[RawClient]
) -> None:
    for number, client in enumerate(clients):
        assert create(client, f"from-here-{number}").status == 201
        store = cluster.view()["stores"][0]["id"]
        assert client.json("PUT", f"/stores/{store}/v1/topics/there-{number}", {"queues": 1}).status in (200, 201)
    lines = clients[0].json("GET", "/v1/audit?limit=1000").json()["lines"]
    for subject in ("from-here-0", "from-here-1", "there-0 queues=1", "there-1 queues=1"):
        assert [line["source"] for line in lines if line["subject"] == subject] == ["127.0.0.1"], subject


def test_a_place_of_another_log_is_refused(logged: RawClient) -> None:
    for after in ("x", ".,.", "x,y,z"):
        refused = logged.json("GET", f"/v1/audit?after={after}")
        assert (refused.status, refused.problem().field) == (400, "after")
