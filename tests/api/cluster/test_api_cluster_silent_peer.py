"""A broker whose heartbeats arrive, but whose advertised address accepts connections and sends nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from broker_clusters import BrokerCluster
from brokers import BrokerProcess, running_broker
from eventually import eventually
from holding_proxy import HoldingProxy, holding_proxy
from raw_client import RawClient
from shared_stores import SHARED, new_place
from tallystick.cli.doctor.cluster import look_at_cluster
from tallystick.core.placing import store_for
from tallystick.link import Link
from tallystick.local import free_port

STORES = 4
MOST_SECONDS = 30.0  # there was no limit
ABANDONED = 200
SPARE_DESCRIPTORS = 20  # connections that are kept for the next request, and those of the test


class SilentPeer(NamedTuple):
    asking: BrokerProcess
    silent: BrokerProcess
    proxy: HoldingProxy
    store: str
    """Owned by the silent broker."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.proxy.port}"


@contextlib.contextmanager
def silent_peer(
    request: pytest.FixtureRequest, engine: str, prefix: list[str] | None = None, **more: Any
) -> Iterator[SilentPeer]:
    """Two brokers. Others reach the second one through the proxy alone."""
    settings = {"store": new_place(engine, request), "stores": STORES, "allow_weak_durability": True, **more}
    port = free_port()
    with (
        holding_proxy(port) as proxy,
        running_broker(prefix=prefix, **settings) as asking,
        running_broker(port=port, advertise=f"http://127.0.0.1:{proxy.port}", **settings) as silent,
    ):
        cluster = BrokerCluster([asking, silent], STORES)

        def spread() -> str:
            owners = cluster.owners()
            theirs = [store for store, url in owners.items() if url.endswith(f":{proxy.port}")]
            return theirs[0] if Counter(owners.values()) == {asking.url: 2, f"http://{address}": 2} else ""

        address = f"127.0.0.1:{proxy.port}"
        store = eventually(spread, "a cluster with all stores spread", ignoring=(OSError,))
        peer = SilentPeer(asking, silent, proxy, store)
        for method, path, content in requests(peer, list(cluster.owners())):
            eventually(lambda asked=(method, path, content): answered(asking, *asked)[0] < 500, path)
        yield peer


def in_order(peer: SilentPeer) -> list[str]:
    return list(BrokerCluster([peer.asking], STORES).owners())


def requests(peer: SilentPeer, stores: list[str]) -> list[tuple[str, str, Any]]:
    """One request of each kind that needs the silent broker. `stores`: all, in the order of their numbers."""
    key = next(key for key in map(str, range(1_000)) if store_for(key, stores) == peer.store)
    message = {"topic": "orders", "value": 1}
    return [
        ("PUT", "/v1/topics/orders", {"queues": 1}),
        ("POST", f"/stores/{peer.store}/v1/messages", {"messages": [message]}),
        ("GET", f"/stores/{peer.store}/v1/info", None),
        ("POST", "/v1/messages", {"messages": [message | {"key": key}]}),
        ("GET", "/v1/topics", None),
        ("GET", "/v1/topics/orders", None),
        ("GET", "/v1/groups", None),
        ("GET", f"/v1/transactions/{peer.store}-1", None),
        ("GET", "/v1/audit", None),
        ("GET", "/api/dtmsvr/all", None),
        ("GET", f"/api/dtmsvr/query?gid={peer.store}-1", None),
    ]


def answered(broker: BrokerProcess, method: str, path: str, content: Any = None) -> tuple[int, str, float]:
    """Status, body and seconds."""
    began = time.monotonic()
    with RawClient(broker.url, timeout=120) as client:
        answer = client.json(method, path, content)
    return answer.status, answer.body.decode(), time.monotonic() - began


def refused(path: str) -> int:
    return 500 if path.startswith("/api/") else 503  # dtm's API has one status for all that fails


def descriptors(broker: BrokerProcess) -> int:
    assert broker.process is not None
    return len(os.listdir(f"/proc/{broker.process.pid}/fd"))


@pytest.mark.parametrize("engine", SHARED)
def test_requests_to_a_silent_broker_are_refused_until_it_answers(request: pytest.FixtureRequest, engine: str) -> None:
    with silent_peer(request, engine) as peer:
        kinds = requests(peer, in_order(peer))
        peer.proxy.hold()
        with ThreadPoolExecutor(len(kinds)) as pool:
            answers = list(pool.map(lambda kind: answered(peer.asking, *kind), kinds))
        for (method, path, _), (status, body, seconds) in zip(kinds, answers, strict=True):
            print(f"{method} {path}: {status} after {seconds:.1f} s")
            assert status == refused(path), (method, path, status, body)
            assert peer.address in body
            assert seconds < MOST_SECONDS, path
        silent = f"the broker at http://{peer.address} does not answer"
        eventually(lambda: silent in peer.asking.log_text(), "the log names the broker")
        asked = peer.proxy.open
        for kind in kinds:  # refused at once, without a connection
            assert answered(peer.asking, *kind)[0] == refused(kind[1])
        assert peer.proxy.open <= asked + 1  # the check
        assert peer.asking.log_text().count(silent) == 1
        assert "tallystick_cluster_silent_brokers 1.0" in answered(peer.asking, "GET", "/metrics")[1]
        with Link(peer.asking.url) as link:
            findings = {finding.subject: finding for finding in look_at_cluster(link)}
        assert "stores" not in findings, "the stores are not at fault"
        assert (findings["brokers"].status, peer.address in findings["brokers"].text) == ("problem", True)
        message = {"messages": [{"topic": "orders", "value": 1}]}
        assert all(answered(peer.asking, "POST", "/v1/messages", message)[0] == 201 for _ in range(STORES))
        peer.proxy.go_on()
        for kind in kinds:
            eventually(lambda kind=kind: answered(peer.asking, *kind)[0] < 500, kind[1])
        assert peer.asking.log_text().count(f"the broker at http://{peer.address} answers again") == 1
        assert peer.asking.log_text().count(silent) == 1


@pytest.mark.parametrize("engine", SHARED)
def test_requests_whose_client_has_gone_hold_no_descriptors(request: pytest.FixtureRequest, engine: str) -> None:
    """The broker comes to its limit of descriptors and recovers. It takes the owner for silent only after two minutes,
    so that only the end of the clients can set descriptors free."""
    with silent_peer(request, engine, prefix=["prlimit", "--nofile=256"], lease="60s") as peer:
        paths = [path for method, path, _ in requests(peer, in_order(peer)) if method == "GET"]
        before = descriptors(peer.asking)
        peer.proxy.hold()
        with contextlib.ExitStack() as clients:
            for number in range(ABANDONED):
                client = clients.enter_context(socket.create_connection(("127.0.0.1", peer.asking.port), 30))
                client.sendall(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % paths[number % len(paths)].encode())
            eventually(lambda: descriptors(peer.asking) >= 250, "the descriptors run out")
        eventually(lambda: peer.asking.get("/readyz") == 200, "the broker takes connections")
        eventually(lambda: descriptors(peer.asking) <= before + SPARE_DESCRIPTORS, "the descriptors are free", 60)
        peer.proxy.go_on()
        for path in paths:
            eventually(lambda path=path: answered(peer.asking, "GET", path)[0] < 500, path)
