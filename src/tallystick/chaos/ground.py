"""The ground that the load stands on: brokers, and whatever they keep their messages in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from tallystick.chaos.network import Crossing, Network
from tallystick.local import LocalBroker, LocalService

# Times are short so that what a blow leaves behind is resolved and delivered within the round.
SETTINGS = {
    "check_after": "1s",
    "check_interval": "500ms",
    "check_interval_cap": "2s",
    "check_timeout": "2s",
    "redelivery_first": "200ms",
    "redelivery_cap": "2s",
    # A consumer that is away for long must not find its messages among the dead letters.
    "max_attempts": 1_000,
    "min_free_bytes": 0,
}


class Ground(Protocol):
    """Brokers as the monkey handles them: each is started, killed and paused by itself. What they share, if anything,
    is the ground's own to start and to end."""

    @property
    def brokers(self) -> Sequence[LocalService]: ...
    @property
    def engines(self) -> Sequence[LocalService]:
        """What the brokers share, if it is the ground's own."""

    @property
    def starts_may_fail(self) -> bool:
        """Whether a broker that is started may end again, because what it needs is not there yet."""

    def lay_ways(self, network: Network) -> list[BrokerWays]:
        """Ways of the brokers' own, before anything is started; one for each broker, or none at all."""

    def start(self) -> None:
        """Start everything; it takes work when this returns."""

    def addresses(self, worker: int, brokers: Sequence[str]) -> list[str]:
        """What a worker's client is given, if it reaches the brokers at these addresses."""

    def stores(self) -> list[str]:
        """An address for each store, under which it is looked at."""

    def takeovers(self) -> int:
        """How often a store went from one broker to another."""

    def end(self) -> None:
        """End everything, whatever state it is in."""


class BrokerWays(NamedTuple):
    """The way on which other brokers come to a broker, and the one that it goes to the shared engine."""

    inward: Crossing
    engine: Crossing


class RocksdbGround:
    """Brokers that know nothing of each other, each with a store of its own on disk."""

    engines: Sequence[LocalService] = ()
    starts_may_fail = False

    def __init__(self, directory: Path, count: int) -> None:
        self._brokers = [LocalBroker(directory / f"broker-{number}", **SETTINGS) for number in range(count)]
        for broker in self._brokers:
            broker.process_group = 0

    @property
    def brokers(self) -> Sequence[LocalService]:
        return self._brokers

    def lay_ways(self, network: Network) -> list[BrokerWays]:
        return []

    def start(self) -> None:
        start_together(self._brokers)

    def addresses(self, worker: int, brokers: Sequence[str]) -> list[str]:
        return list(brokers)

    def stores(self) -> list[str]:
        return [broker.url for broker in self._brokers]

    def takeovers(self) -> int:
        return 0

    def end(self) -> None:
        for broker in self._brokers:
            broker.kill()


def start_together(services: Sequence[LocalService]) -> None:
    for service in services:
        service.spawn()
    for service in services:
        service.wait_ready()
