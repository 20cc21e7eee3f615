"""Who is connected: how many there may be, in all and of one address, and who was sent away."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv6Address

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tallystick.core.errors import BrokerUnavailable, Busy, TallystickError

log = logging.getLogger("tallystick.api")

SAY_AGAIN_SECONDS = 10.0
"""Between two lines of the log about the same: whoever floods the broker does not flood its log."""
_FULL = {
    "all": "there are as many as max_connections says",
    "address": "its address has as many as max_connections_per_address says",
}
_SLOW = {
    "handshake": "TLS did not begin",
    "head": "the head of its request has not come",
    "body": "the rest of its request has not come, or too slowly",
    "unread": "it does not read the end of its answer",
}


class ConnectionPlace:
    """One connection's, until it leaves."""

    def __init__(self, crowd: Crowd, key: str, address: str) -> None:
        self._crowd, self._key, self._address, self._left = crowd, key, address, False

    def cut(self, reason: str, more: str = "") -> None:
        """The connection is about to be cut off. `more` is from a small set, too."""
        self._crowd.cuts[reason] += 1
        why = f"{_SLOW[reason]}{more and f' ({more})'}"
        self._crowd.say(f"a client at {self._address or 'no address'} is cut off: {why}", reason + more)

    def tell(self, words: str, about: str) -> None:
        """Tell the log what becomes of the connection, unless it was told the like just now."""
        self._crowd.say(f"a connection of {self._address or 'no address'} {words}", about)

    def leave(self) -> None:
        """May be called more than once."""
        if not self._left:
            self._left = True
            self._crowd.left(self._key)


class Crowd(Collector):
    def __init__(self, most: int = 10_000, most_of_one: int = 10_000) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._total = 0
        self._by_address: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.cuts: Counter[str] = Counter()
        self._said_at: dict[str, float] = {}

    def refusal(self, address: str) -> TallystickError | None:
        """Why there is no place for a connection from there; None if there is one."""
        if self._total >= self._most:
            return self._refused("all", address, BrokerUnavailable)
        if self._by_address.get(neighbourhood(address), 0) >= self._most_of_one:
            return self._refused("address", address, Busy)
        return None

    def _refused(self, why: str, address: str, kind: type[TallystickError]) -> TallystickError:
        self.refusals[why] += 1
        self.say(f"a connection of {address} is refused: {_FULL[why]}", why)
        return kind(f"no more connections: {_FULL[why]}")

    def enter(self, address: str) -> ConnectionPlace:
        key = neighbourhood(address)
        self._total += 1
        self._by_address[key] += 1
        return ConnectionPlace(self, key, address)

    def left(self, key: str) -> None:
        self._total -= 1
        self._by_address[key] -= 1
        if not self._by_address[key]:
            del self._by_address[key]

    def say(self, words: str, about: str) -> None:
        now = time.monotonic()
        if now - self._said_at.get(about, -SAY_AGAIN_SECONDS) >= SAY_AGAIN_SECONDS:
            self._said_at[about] = now
            log.warning("%s", words)

    def collect(self) -> Iterable[Metric]:
        """For Prometheus."""
        yield GaugeMetricFamily("tallystick_connections", "Connections to the HTTP port.", value=self._total)
        refused = CounterMetricFamily(
            "tallystick_connections_refused", "Connections refused: too many of all, or of one address.", labels=["why"]
        )
        cut = CounterMetricFamily(
            "tallystick_connections_cut", "Connections cut off because their client was too slow.", labels=["why"]
        )
        for family, counts, reasons in ((refused, self.refusals, _FULL), (cut, self.cuts, _SLOW)):
            for reason in reasons:
                family.add_metric([reason], counts[reason])
            yield family


def neighbourhood(address: str) -> str:
    """Whoever has one address of IPv6 has the whole network of it."""
    if ":" not in address:
        return address
    return IPv6Address(address.partition("%")[0]).packed[:8].hex()
