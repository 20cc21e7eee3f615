"""The engine that the brokers of a cluster share: one that is there already, or one that lives as long as the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tallystick.chaos.own_servers import OWN
from tallystick.core.errors import InvalidRequest
from tallystick.core.store_urls import store_url
from tallystick.extras import need
from tallystick.local import LocalService
from tallystick.store.shared.opening import server_at
from tallystick.store.shared.server import ServerAway

PORTS = {"postgresql": 5432, "mysql": 3306, "redis": 6379}


class ChaosEngine(Protocol):
    host: str
    port: int

    @property
    def services(self) -> Sequence[LocalService]:
        """Those that are the run's own, to be killed and started again."""

    def url_at(self, port: int) -> str:
        """Its address for one who reaches it over a port of this machine."""

    def start(self) -> None: ...
    def end(self) -> None: ...


class GivenEngine:
    """A server that somebody else runs, with a database in which there is no cluster yet."""

    services: Sequence[LocalService] = ()

    def __init__(self, url: str) -> None:
        try:
            self._url = store_url(url)
        except ValueError as reason:
            raise InvalidRequest(f"--store: {', '.join(OWN)}, or an address: {reason}", field="--store") from reason
        self._parts = urlsplit(self._url)
        if not self._parts.hostname or "," in self._parts.netloc:
            raise InvalidRequest(
                "--store: the address of one server, such as postgresql://user@host:5432/database", field="--store"
            )
        need(self._parts.scheme)
        self.host, self.port = self._parts.hostname, self._parts.port or PORTS[self._parts.scheme]

    def url_at(self, port: int) -> str:
        login, at, _ = self._parts.netloc.rpartition("@")
        return self._parts._replace(netloc=f"{login}{at}127.0.0.1:{port}").geturl()

    def start(self) -> None:
        """What is done to brokers here is not to be done to those of a cluster that somebody uses."""
        server = server_at(self._url, 0)
        try:
            fence = server.fence()
        except ServerAway:  # no tables, or no server: the brokers will tell
            fence = None
        finally:
            server.close()
        if fence is not None:
            raise InvalidRequest("--store: there is a cluster already; name an empty database", field="--store")

    def end(self) -> None:
        """What is in the database stays."""


def check_store(store: str) -> None:
    """Refuse what `engine_at` could make nothing of."""
    if store in OWN:
        need(store)
        OWN[store].check()
    else:
        GivenEngine(store)


def engine_at(store: str, log: Path) -> ChaosEngine:
    return OWN[store](log) if store in OWN else GivenEngine(store)
