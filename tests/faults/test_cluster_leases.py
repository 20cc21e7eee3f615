"""Leases of an owner that slept through a takeover: each is honoured or refused, by whomever it is shown to, not both.

What was acknowledged is not delivered again; what has gone to somebody else since belongs to that one alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from cluster_load import owned_by_others

from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from eventually import eventually
from raw_client import Answer, RawClient
from shared_stores import SHARED, SHARED_FULL, new_place

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

LONG_MS, SHORT_MS = 600_000, 1_000
HONOURED, REFUSED, MOVED = 200, 409, 503
TRIES = 10


# What a broker's process does first. It looks late at the others, by turns that a pause does not use up: who comes to
# one that wakes up finds an owner that believes. And it writes late what it has read: others come in between.
LATE = """
import asyncio, time
from tallystick.broker.cluster.node import Node
from tallystick.store.shared.engine import SharedEngine
look, write = Node._look, SharedEngine.write
async def look_late(self):
    for _ in range(12):
        await asyncio.sleep(0.05)
    return await look(self)
def write_late(self, changes):
    time.sleep(0.2)
    write(self, changes)
Node._look, SharedEngine.write = look_late, write_late
"""
# And here, besides, it writes whatever it is given, under whoever's epoch it is.
UNFENCED = f"""
{LATE}
def write(self, changes):
    done = False
    while not done:
        fence = self._server.fence()
        done = self._server.apply(fence.epoch, fence.unit, changes)
"""


@pytest.fixture(params=SHARED)
def cluster(request: pytest.FixtureRequest) -> Iterator[BrokerCluster]:
    with running_cluster(new_place(request.param, request), brokers=2, stores=2, prelude=LATE) as made:
        yield made


class Place:
    """One store, as it is asked at any broker."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.store: str = cluster.view()["stores"][0]["id"]
        self.first = cluster.owner_of(self.store)
        (self.second,) = (broker for broker in cluster.brokers if broker is not self.first)

    def ask(self, broker: BrokerProcess, path: str, content: Any) -> Answer:
        """Again, while it is told to ask somebody else, who may be the same."""

        def answered() -> Answer | None:
            with RawClient(broker.url, timeout=120) as client:
                answer = client.json("POST", f"/stores/{self.store}/v1/{path}", content)
            return None if answer.status == MOVED else answer

        return eventually(answered, f"an answer to {path}")

    def send(self, values: list[str]) -> None:
        messages = [{"topic": "orders", "key": value, "value": value} for value in values]
        assert self.ask(self.first, "messages", {"messages": messages}).status == 201

    def receive(self, broker: BrokerProcess, most: int, invisible_ms: int = LONG_MS) -> dict[str, str]:
        """Receipts, by what the messages say."""
        wanted = {"topic": "orders", "max": most, "invisible_ms": invisible_ms, "wait_ms": 0}
        answer = self.ask(broker, "groups/workers/receive", wanted)
        assert answer.status == 200, answer
        return {one["message"]["value"]: one["receipt"] for one in answer.json()["deliveries"]}

    def settle(self, broker: BrokerProcess, receipt: str, how: str = "ack") -> int:
        content = {"receipts": [receipt]} | ({"delay_ms": 0} if how == "nack" else {})
        return self.ask(broker, f"groups/workers/{how}", content).status


class Leases(NamedTuple):
    """Of an owner that slept through a takeover."""

    kept: dict[str, list[int]]  # what both brokers said to those who still had theirs
    lost: dict[str, list[int]]  # and to those whose messages have gone to somebody else since
    given_back: set[int]  # what the sleeper said to some of these who gave theirs back
    new: dict[str, str]  # the receipts that somebody else has got for them


def shown_to_both(cluster: BrokerCluster, place: Place) -> Leases:
    kept, lost = [f"kept-{number}" for number in range(6)], [f"lost-{number}" for number in range(6)]
    place.send(kept)
    old = place.receive(place.first, len(kept))
    place.send(lost)
    old |= place.receive(place.first, len(lost), SHORT_MS)
    assert old.keys() == {*kept, *lost}

    place.first.pause()
    eventually(lambda: owned_by_others(cluster, place.first, place.second), "a takeover")
    new = lent_again(place, set(lost))
    with ThreadPoolExecutor(4 * len(old)) as threads:
        # They reach the sleeper, which answers when it wakes up, and believes that it is the owner.
        at_first = {value: threads.submit(place.settle, place.first, receipt) for value, receipt in old.items()}
        given_back = [threads.submit(place.settle, place.first, old[value], "nack") for value in lost[:3]]
        before = {value: place.settle(place.second, old[value]) for value in (*kept[:3], *lost[:3])}
        place.first.resume()
        after = {value: threads.submit(place.settle, place.second, old[value]) for value in (*kept[3:], *lost[3:])}
        at_second = before | {value: done.result() for value, done in after.items()}
        told = {value: sorted((done.result(), at_second[value])) for value, done in at_first.items()}
        statuses = {done.result() for done in given_back}
    return Leases({value: told[value] for value in kept}, {value: told[value] for value in lost}, statuses, new)


def test_a_lease_of_an_owner_that_slept_is_honoured_or_refused_and_never_both(cluster: BrokerCluster) -> None:
    place = Place(cluster)
    leases = shown_to_both(cluster, place)
    lost, new = list(leases.lost), leases.new
    assert {tuple(told) for told in leases.kept.values()} == {(HONOURED, REFUSED)}
    assert {tuple(told) for told in leases.lost.values()} == {(REFUSED, REFUSED)}
    assert leases.given_back == {REFUSED}

    # Who has got them since has them still: nobody else does, and nobody was told that they are done.
    assert place.receive(place.second, 100) == {}
    assert place.receive(place.first, 100) == {}
    assert [place.settle(place.first, new[value]) for value in lost[:3]] == [HONOURED] * 3
    assert [place.settle(place.second, new[value], "nack") for value in lost[3:]] == [HONOURED] * 3
    assert lent_again(place, set(lost[3:])).keys() == set(lost[3:])
    assert place.receive(place.first, 100) == {}


@pytest.mark.parametrize("engine", SHARED_FULL)
def test_brokers_that_do_not_ask_the_fence_honour_a_lease_twice(engine: str, request: pytest.FixtureRequest) -> None:
    """Unless the one that wakes up has looked before it came to that: so, in one of some tries."""
    for _ in range(TRIES):
        with running_cluster(new_place(engine, request), brokers=2, stores=2, prelude=UNFENCED) as cluster:
            leases = shown_to_both(cluster, Place(cluster))
        if [HONOURED, HONOURED] in leases.kept.values() or HONOURED in leases.given_back:
            return
    raise AssertionError("nothing was noticed")


def lent_again(place: Place, values: set[str]) -> dict[str, str]:
    """What is free by and by at the second broker: these, and nothing else."""
    found: dict[str, str] = {}

    def all_of_them() -> bool:
        found.update(place.receive(place.second, 100))
        return found.keys() >= values

    eventually(all_of_them, "their leases have run out")
    assert found.keys() == values
    return found
