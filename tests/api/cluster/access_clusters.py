"""A cluster that asks everybody who they are, one of whose brokers owns nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from access_tokens import OWN, Token, settings, token
from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from raw_client import Answer, RawClient

TOKENS: dict[str, Token] = {
    **OWN,
    "shop": token("shop", "producer", topics=["shop.*"], groups=["shop"]),
    "single": token("single", "consumer", max_in_flight=1),
}
"""One for each role, by its name; `shop` is a producer of one group and some topics, `single` a consumer who may have
one request under way."""


def shown(who: str) -> dict[str, str]:
    """What somebody sends with a request; nobody sends nothing."""
    return TOKENS[who].headers if who else {}


class Guarded(NamedTuple):
    cluster: BrokerCluster
    store: str
    owner: BrokerProcess
    other: BrokerProcess  # owns nothing, if there are fewer stores than brokers

    def ask(self, who: str, method: str, path: str, body: bytes | None = None, **options: Any) -> Answer:
        """Through the broker that owns nothing, or through `by`; `source` is where it is asked from."""
        broker: BrokerProcess = options.pop("by", self.other)
        headers = {**shown(who), **options.pop("headers", {})}
        with RawClient(broker.url, **options) as client:
            return client.request(method, path, body, headers)


class Tokened(RawClient):
    """Shows a token with everything it asks for, under a path."""

    def __init__(self, url: str, header: dict[str, str], prefix: str = "") -> None:
        super().__init__(url)
        self._header, self._prefix = header, prefix

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        return super().request(method, self._prefix + path, body, {**(headers or {}), **self._header})


@contextlib.contextmanager
def guarded_cluster(url: str, stores: int = 1, brokers: int = 2, **others: Any) -> Iterator[Guarded]:
    """`url` is a store that no cluster was made in before."""
    more = (TOKENS["shop"], TOKENS["single"])
    given = {"lease": "20s", "stores": stores, **settings(*more), **others}
    with running_cluster(url, brokers=brokers, token=TOKENS["reader"].text, **given) as cluster:
        first, *_ = cluster.owners()
        owner = cluster.owner_of(first)
        by_share = sorted(cluster.brokers, key=lambda broker: list(cluster.owners().values()).count(broker.url))
        yield Guarded(cluster, first, owner, by_share[0])
