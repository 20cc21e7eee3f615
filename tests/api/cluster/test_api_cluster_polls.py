"""Long polls at a broker that hands them on, while the owner of the store is killed or put to sleep.

Each gets what comes after the takeover, or is told to ask again, and gets it then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from eventually import eventually
from raw_client import Answer, RawClient
from shared_stores import SHARED, new_place
from tallystick.core.ids import new_gid

pytestmark = pytest.mark.fault
WAIT_MS = 60_000
AGAIN = {"moved", "unavailable"}


@pytest.fixture(params=SHARED)
def cluster(request: pytest.FixtureRequest) -> Iterator[BrokerCluster]:
    with running_cluster(new_place(request.param, request), brokers=2, stores=2, check_interval="200ms") as made:
        yield made


class Way:
    """To one store, through a broker that does not own it: as that store, or as a part of the whole."""

    def __init__(self, broker: BrokerProcess, store: str, path: str) -> None:
        self.broker, self.store, self._path = broker, store, path
        self.name = "part" if path else "whole"
        self.gid = new_gid(store)

    def ask(self, method: str, path: str, content: Any = None) -> Answer:
        with RawClient(self.broker.url, timeout=150) as client:
            return client.json(method, f"{self._path}/v1/{path}", content)

    def receive(self) -> Answer:
        return self.ask("POST", "groups/readers/receive", {"topic": f"quiet-{self.name}", "wait_ms": WAIT_MS})

    def poll_checks(self) -> Answer:
        return self.ask("POST", "checks/poll", {"group": f"shop-{self.name}", "member": "m", "wait_ms": WAIT_MS})

    def put(self) -> None:
        """A message to be received, and a transaction to be asked about, in this store."""
        message = {"topic": f"quiet-{self.name}", "value": "late"}
        sent = self.ask("POST", "messages", {"gid": new_gid(self.store), "messages": [message]})
        content = {"gid": self.gid, "group": f"shop-{self.name}", "check": {"after_ms": 1}, "messages": [message]}
        prepared = self.ask("POST", "transactions", content)
        assert (sent.status, prepared.status) == (201, 201), (sent, prepared)

    def check_delivered(self, received: Answer | None = None, asked: Answer | None = None) -> None:
        """With these polls, or with the next ones if those were in vain."""
        if received is None or in_vain(received):
            received = self.receive()
        if asked is None or in_vain(asked):
            asked = self.poll_checks()
        assert (received.status, asked.status) == (200, 200), (received, asked)
        assert [one["message"]["value"] for one in received.json()["deliveries"]] == ["late"]
        assert self.gid in [one["gid"] for one in asked.json()["checks"]]  # beside those that nobody has answered


def in_vain(poll: Answer) -> bool:
    if poll.status == 503:
        assert poll.problem().code in AGAIN, poll
    return poll.status == 503 or not any(poll.json().values())


def kill(broker: BrokerProcess) -> None:
    broker.kill()


def sleep(broker: BrokerProcess) -> None:
    broker.pause()


@pytest.mark.parametrize("blow", [kill, sleep])
def test_long_polls_outlive_the_owner_of_a_store(cluster: BrokerCluster, blow: Callable[[BrokerProcess], None]) -> None:
    store = cluster.view()["stores"][0]["id"]
    gone = cluster.owner_of(store)
    (other,) = (broker for broker in cluster.brokers if broker is not gone)
    ways = [Way(other, store, f"/stores/{store}"), Way(other, store, "")]
    with ThreadPoolExecutor(2 * len(ways)) as threads:
        polls = [threads.submit(poll) for way in ways for poll in (way.receive, way.poll_checks)]
        # The first thing that a receive does is to make the topic.
        eventually(lambda: all(way.ask("GET", f"topics/quiet-{way.name}").status == 200 for way in ways), "receives")
        eventually(lambda: pollers(gone, store) == len(ways), "polls for check-backs")
        assert not any(poll.done() for poll in polls)
        blow(gone)
        eventually(lambda: owners(cluster, other) == {other.url}, "a takeover")
        for way in ways:
            way.put()
        for way, received, asked in zip(ways, polls[::2], polls[1::2], strict=True):
            way.check_delivered(received.result(), asked.result())
        # Who waits for the other store as well is not left waiting for that one alone.
        assert not in_vain(polls[-1].result())
    if blow is sleep:
        gone.resume()
        both = {gone.url, other.url}  # as the other sees it: whoever wakes up takes itself for an owner at first
        eventually(lambda: owners(cluster, other) == owners(cluster, gone) == both, "a cluster of both again")
        for way in (Way(gone, store, f"/stores/{store}"), Way(gone, store, "")):
            way.put()
            way.check_delivered()


def pollers(broker: BrokerProcess, store: str) -> float:
    """How many wait for check-backs there, as its owner counts them."""
    with RawClient(broker.url) as client:
        told = client.request("GET", "/metrics").body.decode().splitlines()
    (line,) = (one for one in told if one.startswith("tallystick_check_pollers") and store in one)
    return float(line.split()[-1])


def owners(cluster: BrokerCluster, asked: BrokerProcess) -> set[str]:
    return {one["url"].partition("/stores/")[0] for one in cluster.view(asked)["stores"]}
