"""Several real broker processes on one shared store: `with running_cluster(url, brokers=3, stores=4) as cluster`."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

from brokers import BrokerProcess, running_broker
from eventually import eventually


class BrokerCluster:
    """The brokers, running or not; all of them have the same settings."""

    def __init__(self, brokers: list[BrokerProcess], stores: int, token: str = "") -> None:
        """`token`: with which one may look at the cluster."""
        self.brokers = brokers
        self.stores = stores
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def urls(self) -> str:
        """As a client is given them."""
        return ",".join(broker.url for broker in self.brokers)

    def view(self, broker: BrokerProcess | None = None) -> dict[str, Any]:
        """What one of them shows: by default the first that runs."""
        one = broker or next(broker for broker in self.brokers if broker.running)
        asked = urllib.request.Request(f"{one.url}/v1/cluster", headers=self._headers)
        with urllib.request.urlopen(asked, timeout=10, context=one.tls) as answer:
            view: dict[str, Any] = json.load(answer)
            return view

    def owners(self) -> dict[str, str]:
        """The address of each store's owner, by the store's id; those without one are left out."""
        stores = self.view()["stores"]
        return {one["id"]: one["url"].partition("/stores/")[0] for one in stores if one["url"]}

    def owner_of(self, store: str) -> BrokerProcess:
        url = eventually(lambda: self.owners().get(store), f"an owner of {store}")
        return next(broker for broker in self.brokers if broker.url == url)

    def wait_until_spread(self) -> None:
        """Every store has an owner, and the brokers that run have as many as they will have: none moves any more."""

        def spread() -> bool:
            running = [broker.url for broker in self.brokers if broker.running]
            owned = Counter(self.owners().values())
            shares = [owned[url] for url in running]
            return sum(shares) == self.stores and max(shares) - min(shares) <= 1

        eventually(spread, "a cluster with all stores spread", ignoring=(OSError,))


@contextlib.contextmanager
def running_cluster(
    url: str, brokers: int = 3, stores: int = 4, token: str = "", **settings: Any
) -> Iterator[BrokerCluster]:
    """`url` is a store that no cluster was made in before."""
    with contextlib.ExitStack() as stack:
        # The servers of tests do not wait for their disk.
        given = {"store": url, "stores": stores, "allow_weak_durability": True, **settings}
        started = [stack.enter_context(running_broker(**given)) for _ in range(brokers)]
        cluster = BrokerCluster(started, stores, token)
        cluster.wait_until_spread()
        yield cluster
