"""A broker that leaves a cluster: who waits there, and who still comes, does not keep it."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker_clusters import BrokerCluster, running_cluster
from eventually import eventually
from servers import Server
from shared_stores import url_of

pytestmark = pytest.mark.postgresql
WAIT_MS = 30_000
Answered = tuple[int, str]


@pytest.fixture
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    # Who waited for the end of a poll, or two leases for an owner of a store, would take longer than is asserted.
    with running_cluster(url_of(postgres, postgres.new_database()), 2, 4, lease="30s", drain_timeout="60s") as made:
        post(f"{made.brokers[0].url}/v1/messages", messages=[{"topic": "orders", "value": 1}])
        yield made


def post(url: str, **body: object) -> Answered:
    """The status, and the code of what was refused."""
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=100) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)["code"]


def end_seconds(cluster: BrokerCluster) -> float:
    """How long the first broker takes to end in good order."""
    leaving, began = cluster.brokers[0], time.monotonic()
    leaving.terminate()
    eventually(lambda: not leaving.running, "a broker that has ended")
    assert leaving.process is not None
    assert leaving.process.poll() == 0
    assert "left the cluster" in leaving.log_text()
    return time.monotonic() - began


def test_long_polls_at_a_broker_that_leaves_are_told_to_ask_elsewhere(cluster: BrokerCluster) -> None:
    """At the whole cluster, and at each store: one of its own, or one whose owner it asks."""
    first, second = cluster.brokers
    places = {"all": first.url} | {
        store["id"]: f"{first.url}/stores/{store['id']}" for store in cluster.view()["stores"]
    }
    with ThreadPoolExecutor(len(places)) as threads:
        polls = {
            name: threads.submit(post, f"{place}/v1/groups/readers/receive", topic=f"quiet-{name}", wait_ms=WAIT_MS)
            for name, place in places.items()
        }
        # The first thing that a receive does is to make the topic.
        eventually(lambda: {f"quiet-{name}" for name in places} <= topics(second.url), "polls that wait")
        took = end_seconds(cluster)
        assert {name: poll.result() for name, poll in polls.items()} == dict.fromkeys(places, (503, "moved"))
    assert took < WAIT_MS / 1000 / 2


def topics(url: str) -> set[str]:
    with urllib.request.urlopen(f"{url}/v1/topics", timeout=10) as answer:
        return {one["name"] for one in json.load(answer)["topics"]}


def test_the_last_broker_lets_nobody_wait_for_an_owner_that_will_not_come(cluster: BrokerCluster) -> None:
    first, second = cluster.brokers
    second.terminate()
    eventually(lambda: not second.running, "a broker that has ended")
    eventually(lambda: set(cluster.owners().values()) == {first.url}, "all stores at the first")
    over, answers = threading.Event(), []
    store = cluster.view(first)["stores"][0]["url"]

    def send() -> None:
        while not over.is_set():
            try:
                answers.append(post(f"{store}/v1/messages", messages=[{"topic": "orders", "value": 1}]))
            except OSError:  # it is gone
                return

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(send)
        eventually(lambda: len(answers) > 20, "work")
        took = end_seconds(cluster)
        over.set()
    assert took < WAIT_MS / 1000 / 2
    assert {status for status, _ in answers} <= {201, 503}
