"""`tallystick cluster` and what `doctor` says of one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from command_line import tallystick

from broker_clusters import BrokerCluster, running_cluster
from brokers import running_broker
from eventually import eventually
from servers import Server
from shared_stores import url_of


@pytest.fixture
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    with running_cluster(url_of(postgres, postgres.new_database()), brokers=2, stores=3) as made:
        yield made


@pytest.mark.postgresql
def test_brokers_and_stores_are_shown_also_after_a_death(cluster: BrokerCluster) -> None:
    first, second = cluster.brokers
    shown = tallystick("cluster", url=first.url)
    assert shown.code == 0
    assert first.url in shown.out
    assert second.url in shown.out
    assert "nobody" not in shown.out
    found = {
        one["subject"]: one
        for one in tallystick("doctor", "--no-environment", "--json", url=first.url).json()["findings"]
    }
    assert (found["cluster"]["status"], found["durability"]["status"]) == ("ok", "problem")
    second.kill()
    eventually(lambda: len([url for url in cluster.owners().values() if url == first.url]) == 3, "a takeover")
    view = json.loads(tallystick("cluster", "--json", url=first.url).out)
    assert {one["url"].partition("/stores")[0] for one in view["stores"]} == {first.url}
    assert [one["alive"] for one in view["brokers"] if one["url"] == second.url] == [False]


def test_a_broker_of_its_own_says_so() -> None:
    with running_broker(store="memory") as broker:
        assert "a broker of its own" in tallystick("cluster", url=broker.url).err
