"""Brokers of a cluster whose engine goes silent and comes back, while every connection of before stays silent."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import tallystick
from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from eventually import eventually
from holding_proxy import HoldingProxy, holding_proxy
from servers import DATABASE, RedisServer, mariadb_server, postgres_server, redis_server
from shared_stores import CLUSTER_DB, SHARED_FULL, url_of
from tallystick.core.errors import TallystickError

pytestmark = [pytest.mark.fault, pytest.mark.full, pytest.mark.timeout(600)]

RUNS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "postgresql": postgres_server,
    "mysql": mariadb_server,
    "redis": lambda: redis_server(appendonly="yes", appendfsync="always"),
}
SILENCE_SECONDS = 20.0
RECOVERY_SECONDS = 45.0  # on a machine that does much else; one frozen connection after the other took 100 to 400 s
KEYS = [f"key-{number}" for number in range(24)]


def url_through(proxy: HoldingProxy, server: Any) -> str:
    if isinstance(server, RedisServer):
        return f"redis://{server.host}:{proxy.port}/{CLUSTER_DB}"
    return url_of(server, DATABASE, proxy.port)


def descriptors(broker: BrokerProcess) -> int:
    """Those that do not belong to a client of the broker."""
    assert broker.pid is not None
    places = f"/proc/{broker.pid}/fd"
    return len(os.listdir(places))


def send_to_all(cluster: BrokerCluster) -> bool:
    """Whether every store takes a message."""
    with tallystick.Client(cluster.urls, timeout=20) as ts:
        for key in KEYS:
            ts.send("orders", key, key=key)
    return True


def owned_by(cluster: BrokerCluster, brokers: list[BrokerProcess]) -> bool:
    view = cluster.view(brokers[0])
    alive = tuple(broker.url for broker in brokers)
    return not view["engine_away"] and all(store["url"].startswith(alive) for store in view["stores"])


@pytest.mark.parametrize("engine", SHARED_FULL)
def test_brokers_go_on_soon_after_their_engine_was_silent(engine: str) -> None:
    """One of them dies meanwhile, and its stores are taken. No descriptor is left, and few attempts are made."""
    with (
        RUNS[engine]() as server,
        holding_proxy(server.port) as proxy,
        running_cluster(url_through(proxy, server), brokers=3, stores=8, check_after="1h") as cluster,
    ):
        eventually(lambda: send_to_all(cluster), "every store takes messages", ignoring=(TallystickError,))
        staying, victim = cluster.brokers[:2], cluster.brokers[2]
        before, attempts = [descriptors(broker) for broker in staying], proxy.accepted
        proxy.hold()
        time.sleep(SILENCE_SECONDS / 2)
        victim.kill()
        time.sleep(SILENCE_SECONDS / 2)
        during = [descriptors(broker) for broker in staying]
        made = proxy.accepted - attempts
        assert made <= 3 * len(staying) * SILENCE_SECONDS
        assert max(now - then for now, then in zip(during, before, strict=True)) <= 8
        proxy.go_on()
        began = time.monotonic()
        for broker in staying:
            eventually(lambda broker=broker: broker.get("/readyz") == 200, "it is ready", RECOVERY_SECONDS)
        ready = time.monotonic() - began
        eventually(
            lambda: owned_by(cluster, staying), "every store has an owner", RECOVERY_SECONDS, ignoring=(OSError,)
        )
        owned = time.monotonic() - began
        eventually(lambda: send_to_all(cluster), "every store takes messages", ignoring=(TallystickError,))
        print(f"ready after {ready:.1f} s, all owned after {owned:.1f} s, {made} connections in the silence, {during}")
        assert owned < RECOVERY_SECONDS
        # Connections for the stores that were taken, and none of before.
        eventually(lambda: proxy.open <= 40, "the connections of before are closed")
        eventually(
            lambda: all(descriptors(broker) <= then + 20 for broker, then in zip(staying, before, strict=True)),
            "nothing is left open",
        )


@pytest.mark.parametrize("engine", SHARED_FULL)
def test_brokers_whose_engine_refuses_make_few_attempts(engine: str) -> None:
    with (
        RUNS[engine]() as server,
        holding_proxy(server.port) as proxy,
        running_cluster(url_through(proxy, server), brokers=2, stores=8, check_after="1h") as cluster,
    ):
        before = [descriptors(broker) for broker in cluster.brokers]
        server.kill()
        with contextlib.suppress(TallystickError):
            send_to_all(cluster)
        attempts = proxy.accepted
        time.sleep(10)
        made = proxy.accepted - attempts
        print(f"{made} attempts of two brokers in 10 s")
        assert made <= 40
        eventually(
            lambda: all(descriptors(one) <= then + 4 for one, then in zip(cluster.brokers, before, strict=True)),
            "nothing is left open",
        )
        server.start()
        eventually(lambda: send_to_all(cluster), "every store takes messages", ignoring=(TallystickError,))
