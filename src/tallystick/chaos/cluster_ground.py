"""Brokers of a cluster as the ground: they share an engine, and take over each other's stores."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tallystick.chaos.engines import ChaosEngine
from tallystick.chaos.ground import SETTINGS, BrokerWays, start_together
from tallystick.chaos.network import Network
from tallystick.core.errors import TallystickError
from tallystick.link import Link
from tallystick.local import LocalBroker, LocalService

OWNED_SECONDS = 60.0
LOOK_SECONDS = 0.1
_CLAIM = re.compile(r"store \S+ is ours, epoch ")


class ClusterGround:
    """Every broker reaches the engine, and the others reach it, over ways of the network."""

    starts_may_fail = True  # the engine may be away just then

    def __init__(self, directory: Path, count: int, stores: int, engine: ChaosEngine) -> None:
        self._engine = engine
        settings = {**SETTINGS, "stores": stores}
        self._brokers = [LocalBroker(directory / f"broker-{number}", **settings) for number in range(count)]
        for broker in self._brokers:
            broker.process_group = 0
        self._stores: list[str] = []
        self._first_claims = 0

    @property
    def brokers(self) -> Sequence[LocalService]:
        return self._brokers

    @property
    def engines(self) -> Sequence[LocalService]:
        return self._engine.services

    def lay_ways(self, network: Network) -> list[BrokerWays]:
        ways = []
        for broker in self._brokers:
            inward, engine = network.cross(broker.port), network.cross(self._engine.port, self._engine.host)
            broker.settings |= {"store": self._engine.url_at(engine.port), "advertise": inward.url}
            ways.append(BrokerWays(inward, engine))
        return ways

    def start(self) -> None:
        self._engine.start()
        start_together(self._brokers)
        deadline = time.monotonic() + OWNED_SECONDS
        while not all(store["url"] for store in self._view()):
            if time.monotonic() > deadline:
                raise TallystickError(f"nobody owns some of the stores; see {self._brokers[0].log}")
            time.sleep(LOOK_SECONDS)
        self._stores = [store["id"] for store in self._view()]
        self._first_claims = self._claims()

    def addresses(self, worker: int, brokers: Sequence[str]) -> list[str]:
        """Every other one is given the brokers, learns who owns what, and goes to the owners on the ways on which they
        come to each other. The rest is given each store by each broker, and stays on ways of its own."""
        return list(brokers) if worker % 2 else self._each_store(brokers)

    def _each_store(self, brokers: Sequence[str]) -> list[str]:
        return [f"{broker}/stores/{store}" for store in self._stores for broker in brokers]

    def stores(self) -> list[str]:
        return self._each_store([self._brokers[0].url])

    def takeovers(self) -> int:
        return self._claims() - self._first_claims

    def end(self) -> None:
        for broker in self._brokers:
            broker.kill()
        self._engine.end()

    def _claims(self) -> int:
        """As the brokers have logged them, in all their lives: epochs tell no numbers, on Redis they jump."""
        return sum(len(_CLAIM.findall(broker.log_text())) for broker in self._brokers)

    def _view(self) -> list[dict[str, Any]]:
        with Link(self._brokers[0].url, patience=OWNED_SECONDS) as link:
            stores: list[dict[str, Any]] = link.get("cluster")["stores"]
            return stores
