"""Opening this process's share of a cluster, and ending it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from prometheus_client.registry import Collector

from tallystick.api.cluster.api import ClusterApi
from tallystick.api.cluster.asking import DoorApi
from tallystick.api.cluster.door import ClusterDoor
from tallystick.api.cluster.owners import Owners
from tallystick.api.cluster.peers import PeerSeal
from tallystick.api.serving.forwarding import Forwarder
from tallystick.api.serving.tls import Tls
from tallystick.broker.cluster.joining import joined
from tallystick.broker.config import Config
from tallystick.core.addresses import broker_address
from tallystick.core.errors import ConfigError

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - to be told apart from an address, not to be bound


@asynccontextmanager
async def cluster_service(
    config: Config, url: str, grpc_place: str, tls: Tls, of_the_process: Sequence[Collector]
) -> AsyncIterator[tuple[ClusterApi, ClusterDoor]]:
    """`url` and `grpc_place` are where programs on this machine reach the broker; `of_the_process` are numbers that its
    metrics show beside those of the cluster."""
    async with joined(config, _advertised(config, url), config.advertise_grpc or _named(config, grpc_place)) as node:
        forwarder = Forwarder(node.membership.me.id, tls.peers)
        seal = None if config.auth == "off" else PeerSeal(lambda: node.peer_key, node.clock.now_ms)
        owners = Owners(node, forwarder, DoorApi, seal)
        door = ClusterDoor(owners, config, of_the_process)
        api = ClusterApi(owners, door, config.drain_timeout / 1000)
        try:
            yield api, door
        finally:
            await api.close()
            await owners.circuits.close()
            forwarder.close()


def _advertised(config: Config, url: str) -> str:
    """Where the others reach this broker: as the operator says, or by the address that it listens on."""
    if not config.advertise:
        return _named(config, url)
    spoken = url.partition("://")[0]
    given = config.advertise if "//" in config.advertise else f"{spoken}://{config.advertise}"
    try:
        place = broker_address(given)
    except ValueError as reason:
        raise ConfigError(f"advertise: {reason}", field="advertise") from reason
    if place.scheme != spoken:
        why = "it has tls_cert" if spoken == "https" else "for https it needs tls_cert and tls_key"
        raise ConfigError(f"advertise: this broker speaks {spoken}: {why}", field="advertise")
    if place.credentials:
        raise ConfigError("advertise: brokers reach each other without a name and password", field="advertise")
    return place.text


def _named(config: Config, place: str) -> str:
    """A broker that listens on every address is known to the others by the name of its machine."""
    if config.host not in _EVERYWHERE or not place:
        return place
    scheme, separator, _ = place.rpartition("://")
    return f"{scheme}{separator}{socket.gethostname()}:{place.rpartition(':')[2]}"
