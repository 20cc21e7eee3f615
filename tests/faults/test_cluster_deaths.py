"""Brokers of a cluster are killed, put to sleep and sent away under load: what was acknowledged is there, once."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from broker_clusters import BrokerCluster, running_cluster
from eventually import eventually
from shared_stores import SHARED, new_place

pytestmark = pytest.mark.fault


@pytest.fixture(params=SHARED)
def cluster(request: pytest.FixtureRequest) -> Iterator[BrokerCluster]:
    with running_cluster(new_place(request.param, request), brokers=3, stores=4, lease="2s", check_after="1h") as made:
        yield made


class Producer(threading.Thread):
    """Prepares and commits at one broker after the other, and writes down what it was told."""

    def __init__(self, cluster: BrokerCluster, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._urls = itertools.cycle([broker.url.removeprefix("http://") for broker in cluster.brokers])
        self.enough = threading.Event()
        self.asked: set[str] = set()
        self.acknowledged: set[str] = set()
        self.acknowledged_at = [time.monotonic()]

    def run(self) -> None:
        for number in itertools.count():
            if self.enough.is_set():
                return
            gid = f"{self.name}-{number}"
            self.asked.add(gid)
            content = {"gid": gid, "group": "g", "messages": [{"topic": "t", "key": gid, "value": gid}]}
            prepared = self._ask("/v1/transactions", content) == 201
            if prepared and self._ask(f"/v1/transactions/{gid}/commit", {}) == 200:
                self.acknowledged.add(gid)
                self.acknowledged_at.append(time.monotonic())

    def _ask(self, path: str, content: Any) -> int:
        """The status; 0 if nobody knows what came of it."""
        connection = http.client.HTTPConnection(next(self._urls), timeout=20)
        try:
            connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except OSError:
            time.sleep(0.02)
            return 0
        except http.client.HTTPException:
            return 0
        finally:
            connection.close()


def ask(cluster: BrokerCluster, path: str) -> Any:
    broker = next(broker for broker in cluster.brokers if broker.running)
    connection = http.client.HTTPConnection(broker.url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status == 200, content
        return content
    finally:
        connection.close()


def states(cluster: BrokerCluster) -> dict[str, str]:
    found: dict[str, str] = {}
    after = ""
    while after is not None:
        page = ask(cluster, f"/v1/transactions?limit=1000{f'&after={after}' if after else ''}")
        found |= {one["gid"]: one["state"] for one in page["transactions"]}
        after = page["next"]
    return found


def messages(cluster: BrokerCluster) -> Counter[str]:
    found: Counter[str] = Counter()
    for queue, end in enumerate(ask(cluster, "/v1/topics/t")["ends"]):
        offset = 0
        while offset < end:
            page = ask(cluster, f"/v1/topics/t/queues/{queue}/messages?max=1000&offset={offset}")
            found.update(message["value"] for message in page["messages"])
            offset = page["next"]
    return found


def goes_on(producers: list[Producer]) -> None:
    """Each of them is told of success again, from now on."""
    since = time.monotonic()
    eventually(lambda: all(one.acknowledged_at[-1] > since for one in producers), "all producers go on")


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
    eventually(lambda: _owned_by_others(cluster, asleep.url, killed), "a takeover from the one who sleeps")
    goes_on(producers)
    os.kill(asleep.pid, signal.SIGCONT)  # in the middle of whatever it was at
    goes_on(producers)

    sent_away.stop()
    goes_on(producers)
    for one in producers:
        one.enough.set()
        one.join(120)
    cluster.brokers.remove(sent_away)
    eventually(lambda: len(cluster.owners()) == 4, "an owner for each store", ignoring=(OSError,))
    acknowledged = set[str]().union(*(one.acknowledged for one in producers))
    asked = set[str]().union(*(one.asked for one in producers))
    state, delivered = states(cluster), messages(cluster)
    committed = {gid for gid, was in state.items() if was == "committed"}
    assert acknowledged
    assert acknowledged <= committed <= asked
    assert set(delivered) == committed
    assert set(delivered.values()) == {1}
    assert set(state.values()) <= {"committed", "prepared"}


def _owned_by_others(cluster: BrokerCluster, url: str, asked: Any) -> bool:
    stores = cluster.view(asked)["stores"]
    return all(one["url"] and not one["url"].startswith(url + "/") for one in stores)
