"""What an operator watches of a broker in a cluster: the numbers of each of its stores, and its own."""

from __future__ import annotations

from asyncio import gather
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tallystick.api.cluster.owners import Owners


class ClusterMetrics:
    def __init__(self, owners: Owners, of_the_process: Sequence[Collector]) -> None:
        self._owners, self._of_the_process = owners, of_the_process
        self._requests: Counter[tuple[str, str]] = Counter()

    def answered(self, route: str, status: str) -> None:
        """A request that named no store, or was refused before its store was asked. The others are counted by the
        store's own broker."""
        self._requests[route, status] += 1

    async def told(self) -> bytes:
        """In the form that Prometheus reads."""
        families = [*self._own(), *(family for one in self._of_the_process for family in one.collect())]
        doors = {store: door for store in self._owners.own() if (door := self._owners.door(store)) is not None}
        # All at once: each waits a little for a look at its store, if the server is slow.
        for store, told in zip(doors, await gather(*(door.families() for door in doors.values())), strict=True):
            families += [_labelled(family, store) for family in told]
        return generate_latest(_Fixed(_merged(families)))

    def _own(self) -> Iterator[Metric]:
        node = self._owners.node
        requests = CounterMetricFamily(
            "tallystick_cluster_requests",
            "Requests that named no store, or were refused before their store was asked.",
            labels=["route", "status"],
        )
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        view = self._owners.view()
        for name, text, value in (
            ("stores", "Stores that this broker owns.", len(self._owners.own())),
            (
                "brokers",
                "Brokers that are alive, as this one sees it.",
                sum(one.alive for one in view.brokers),
            ),
            ("silent_brokers", "Brokers that are alive and do not answer this one.", self._owners.circuits.silent()),
            ("away", "1 while the shared engine cannot be asked who owns what.", int(node.away)),
        ):
            yield GaugeMetricFamily(f"tallystick_cluster_{name}", text, value=value)
        yield CounterMetricFamily(
            "tallystick_cluster_takeovers", "Stores that this broker took from one that was gone.", value=node.takeovers
        )
        vacancies = GaugeMetricFamily(
            "tallystick_cluster_vacant_seconds",
            "How long nobody owned a store before this broker took it, or for how long nobody has owned it so far.",
            labels=["store"],
        )
        for store in view.stores:
            if store.vacant_ms is not None and (store.owner == view.broker or not store.url):
                vacancies.add_metric([store.id], store.vacant_ms / 1000)
        yield vacancies


class _Fixed(CollectorRegistry):
    """Families that were collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _labelled(family: Metric, store: str) -> Metric:
    family.samples = [sample._replace(labels={**sample.labels, "store": store}) for sample in family.samples]
    return family


def _merged(families: Iterable[Metric]) -> Iterable[Metric]:
    """One family for each name, with what all stores have said."""
    merged: dict[str, Metric] = {}
    for family in families:
        known = merged.setdefault(family.name, family)
        if known is not family:
            known.samples += family.samples
    return merged.values()
