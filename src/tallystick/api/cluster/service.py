"""Opening this process's share of a cluster, and ending it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tallystick.api.cluster.api import ClusterApi
from tallystick.api.cluster.asking import DoorApi
from tallystick.api.cluster.door import ClusterDoor
from tallystick.api.cluster.owners import Owners
from tallystick.api.serving.forwarding import Forwarder
from tallystick.broker.cluster.joining import joined
from tallystick.broker.config import Config
from tallystick.core.addresses import broker_address
from tallystick.core.errors import ConfigError

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - to be told apart from an address, not to be bound


@asynccontextmanager
async def cluster_service(config: Config, url: str, grpc_place: str) -> AsyncIterator[tuple[ClusterApi, ClusterDoor]]:
    """`url` and `grpc_place` are where programs on this machine reach the broker."""
    async with joined(config, _advertised(config, url), config.advertise_grpc or _named(config, grpc_place)) as node:
        forwarder = Forwarder(node.membership.me.id)
        owners = Owners(node, forwarder, DoorApi)
        door = ClusterDoor(owners, config)
        api = ClusterApi(owners, door, config.drain_timeout / 1000)
        try:
            yield api, door
        finally:
            await api.close()
            forwarder.close()


def _advertised(config: Config, url: str) -> str:
    """Where the others reach this broker: as the operator says, or by the address that it listens on."""
    if not config.advertise:
        return _named(config, url)
    try:
        place = broker_address(config.advertise)
    except ValueError as reason:
        raise ConfigError(f"advertise: {reason}", field="advertise") from reason
    if place.scheme != "http" or place.credentials:
        raise ConfigError(
            "advertise: brokers reach each other by plain http, without a name and password", field="advertise"
        )
    return place.text


def _named(config: Config, place: str) -> str:
    """A broker that listens on every address is known to the others by the name of its machine."""
    if config.host not in _EVERYWHERE or not place:
        return place
    before, _, after = place.rpartition(":")
    scheme = "http://" if before.startswith("http://") else ""
    return f"{scheme}{socket.gethostname()}:{after}"
