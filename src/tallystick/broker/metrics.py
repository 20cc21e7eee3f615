"""What an operator watches. Labels come from small closed sets, or are cut off at a bound."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tallystick.core.wire import GroupView
from tallystick.store.protocol import Counts, Store

MAX_LAG_SERIES = 200

_TOTALS = {
    "prepared": "Transactions prepared.",
    "committed": "Transactions and sends with a gid that became committed.",
    "rolled_back": "Transactions that became rolled back.",
    "conflict": "Requests that contradicted a durable outcome.",
    "parked": "Transactions parked because nobody could tell their outcome.",
    "exhausted": "Transactions rolled back because their checks were used up.",
    "dead_letter": "Messages moved to a dead-letter topic.",
    "call_parked": "Calls parked because their tries were used up.",
}


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.totals: Tally[str] = Tally()  # since the start, see _TOTALS
        self.requests: Tally[tuple[str, str]] = Tally()  # by route and status; here, because each is paid for
        registry = self.registry
        self.checks_sent = Counter("tallystick_checks_sent", "Check-backs sent.", ["via"], registry=registry)
        self.checks_answered = Counter(
            "tallystick_checks_answered", "Check-backs answered.", ["via", "answer"], registry=registry
        )
        self.checks_failed = Counter(
            "tallystick_checks_failed", "Check-backs without an answer.", ["via", "kind"], registry=registry
        )
        self.check_seconds = Histogram(
            "tallystick_check_seconds", "Time from a check-back to its answer.", ["via"], registry=registry
        )
        self.calls_made = Counter(
            "tallystick_calls_made", "Calls made, by what came of them.", ["protocol", "outcome"], registry=registry
        )
        self.call_seconds = Histogram(
            "tallystick_call_seconds", "Time from a call to its answer.", ["protocol"], registry=registry
        )
        self.calls_in_flight = Gauge("tallystick_calls_in_flight", "Calls under way.", registry=registry)
        self.call_hosts_open = Gauge(
            "tallystick_call_hosts_open", "Hosts that do not answer: their calls wait.", registry=registry
        )
        self.commit_seconds = Histogram(
            "tallystick_group_commit_seconds",
            "Time of one group commit, fsync included.",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0),
            registry=registry,
        )
        self.alerts_failed = Counter(
            "tallystick_alerts_failed", "Alerts that the alert URL did not take.", registry=registry
        )
        self.producers = Gauge(
            "tallystick_check_pollers", "Producer group members waiting for check-backs.", registry=registry
        )

    def call_made(self, protocol: str, outcome: str, seconds: float) -> None:
        self.calls_made.labels(protocol, outcome).inc()
        self.call_seconds.labels(protocol).observe(seconds)


class StoreCollector:
    """Reads the store's own numbers when Prometheus asks, so that the way of a request only sums up."""

    def __init__(self, store: Store, metrics: Metrics, failure: Callable[[], str | None]) -> None:
        """`failure` tells why the store takes no new messages, as `/readyz` does."""
        self._store, self._totals, self._requests = store, metrics.totals, metrics.requests
        self._failure = failure
        self.counts: Counts | None = None
        self.groups: list[GroupView] = []
        self.now_ms = 0

    def collect(self) -> Iterable[Metric]:
        for name, text in _TOTALS.items():
            yield CounterMetricFamily(f"tallystick_{name}", text, value=self._totals[name])
        requests = CounterMetricFamily("tallystick_http_requests", "HTTP requests.", labels=["route", "status"])
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        stopped = 1 if self._failure() else 0
        text = "1 while the store takes no new messages: it cannot write, is silent or has no room."
        yield GaugeMetricFamily("tallystick_store_failed", text, value=stopped)
        if self._store.remote:
            trips = self._store.round_trips()
            yield CounterMetricFamily("tallystick_store_round_trips", "Round trips to the store's server.", value=trips)
        if self.counts is not None:
            yield from self._gauges(self.counts)
        yield self._lag()

    def _gauges(self, counts: Counts) -> Iterable[Metric]:
        oldest = counts.oldest_pending_at
        age = 0.0 if oldest is None else max(0, self.now_ms - oldest) / 1000
        yield GaugeMetricFamily("tallystick_pending", "Prepared, unresolved transactions.", value=counts.pending)
        yield GaugeMetricFamily("tallystick_pending_oldest_seconds", "Age of the oldest of them.", value=age)
        yield GaugeMetricFamily("tallystick_parked_now", "Transactions that are parked now.", value=counts.parked)
        yield GaugeMetricFamily("tallystick_parts", "Prepared parts nobody has claimed.", value=counts.parts)
        yield GaugeMetricFamily("tallystick_calls_waiting", "Calls that are not done yet.", value=counts.calls_waiting)
        yield GaugeMetricFamily("tallystick_calls_parked", "Calls that are parked now.", value=counts.calls_parked)
        yield GaugeMetricFamily("tallystick_leases", "Messages under lease.", value=counts.leased)

    def _lag(self) -> Metric:
        family = GaugeMetricFamily("tallystick_lag", "Messages a group has not settled.", labels=["group", "topic"])
        for view in self.groups:
            family.add_metric([view.group, view.topic], view.lag)
        return family
