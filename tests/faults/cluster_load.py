"""Work for a cluster while its brokers are struck, and what it has of that in the end."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from typing import Any

from broker_clusters import BrokerCluster
from brokers import BrokerProcess
from eventually import eventually


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
        status = post(next(self._urls), path, content)
        if not status:
            time.sleep(0.02)
        return status


def post(place: str, path: str, content: Any, timeout: float = 20) -> int:
    """The status of an answer, 0 without one."""
    connection = http.client.HTTPConnection(place, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def goes_on(producers: list[Producer]) -> None:
    """Each of them is told of success again, from now on."""
    since = time.monotonic()
    eventually(lambda: all(one.acknowledged_at[-1] > since for one in producers), "all producers go on")


def stop(producers: list[Producer]) -> None:
    for one in producers:
        one.enough.set()
    for one in producers:
        one.join(120)


def owned_by_others(cluster: BrokerCluster, gone: BrokerProcess, asked: BrokerProcess) -> bool:
    """Whether all stores are, as one broker sees it, at brokers other than one."""
    stores = cluster.view(asked)["stores"]
    return all(one["url"] and not one["url"].startswith(gone.url + "/") for one in stores)


# --- what there is -----------------------------------------------------------------------------------------------


def check_what_is_there(cluster: BrokerCluster, producers: list[Producer]) -> None:
    """All that was acknowledged, once, and nothing that nobody asked for."""
    eventually(lambda: len(cluster.owners()) == cluster.stores, "an owner for each store", ignoring=(OSError,))
    acknowledged = set[str]().union(*(one.acknowledged for one in producers))
    asked = set[str]().union(*(one.asked for one in producers))
    state, delivered = states(cluster), messages(cluster)
    committed = {gid for gid, was in state.items() if was == "committed"}
    assert acknowledged
    assert acknowledged - committed == set(), "lost"
    assert committed - asked == set(), "made up"
    assert set(delivered) == committed
    assert set(delivered.values()) == {1}
    assert set(state.values()) <= {"committed", "prepared"}


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
        page = ask(cluster, f"/v1/transactions?group=g&limit=1000{f'&after={after}' if after else ''}")
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
