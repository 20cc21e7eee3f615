"""Requests to several stores while some stores, or all, do not answer: one time limit for the whole request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from broker_clusters import running_cluster
from eventually import eventually
from holding_proxy import holding_proxy
from raw_client import RawClient
from servers import RedisServer, Server
from shared_stores import FIXTURES, MARKS, SHARED_FULL, new_place, url_of
from tallystick.core.errors import StorageFailed

STORES = 8
MOST_SECONDS = 30.0  # one store after the other took 57 to 80 s
KEYS = [f"key-{number}" for number in range(32)]
LONG_MS = 600_000

ALL_ROWS = {
    "postgresql": "lock table tallystick_store_fence in access exclusive mode",
    "mysql": "lock tables tallystick_store_fence write",
}
ROWS_BUT_ONE = "select store from tallystick_store_fence order by store limit 7 for update"
ENGINES = [pytest.param(name, marks=MARKS[name] + [pytest.mark.full] * (name != "postgresql")) for name in ALL_ROWS]


@contextmanager
def locked(server: Server, database: str, statement: str) -> Iterator[None]:
    with closing(server.connect(database)) as session:
        cursor = session.cursor()
        cursor.execute(statement)
        yield
        session.rollback()


def send_to_all(client: RawClient) -> None:
    for key in KEYS:
        content = {"messages": [{"topic": "orders", "key": key, "value": key}]}
        eventually(
            lambda content=content: client.json("POST", "/v1/messages", content).status == 201, "a message is taken"
        )


def received_from_healthy_store(url: str, group: str) -> tuple[float, str | None]:
    """How long it took, and the key of the message. Each of several such receives begins with another store."""
    with RawClient(url, timeout=120) as client:
        began = time.monotonic()
        (delivery,) = client.receive(group, "orders", max=1, invisible_ms=LONG_MS)
        return time.monotonic() - began, delivery.message.key


def refused_in_time(client: RawClient, wait_ms: int = 0, reason: str | None = None) -> float:
    began = time.monotonic()
    with pytest.raises(StorageFailed, match=reason):
        client.receive("mail", "orders", wait_ms=wait_ms)
    took = time.monotonic() - began
    assert took < MOST_SECONDS
    return took


@pytest.mark.parametrize("engine", ENGINES)
def test_a_receive_passes_stores_that_do_not_answer(request: pytest.FixtureRequest, engine: str) -> None:
    """Their messages are not lost to the lease of a receive that was not waited for."""
    server: Server = request.getfixturevalue(FIXTURES[engine])
    database = server.new_database()
    with (
        running_cluster(url_of(server, database), brokers=1, stores=STORES) as cluster,
        RawClient(cluster.brokers[0].url, timeout=120) as client,
    ):
        send_to_all(client)
        url, groups = cluster.brokers[0].url, [f"mail-{number}" for number in range(STORES)]
        with locked(server, database, ROWS_BUT_ONE), ThreadPoolExecutor(STORES) as pool:
            answers = list(pool.map(lambda group: received_from_healthy_store(url, group), groups))
        print(f"received from the one healthy store of {STORES} after {max(took for took, _ in answers):.1f} s")
        assert max(took for took, _ in answers) < MOST_SECONDS
        received = {answers[0][1]}

        def all_received() -> bool:
            received.update(one.message.key for one in client.receive(groups[0], "orders", invisible_ms=LONG_MS))
            return len(received) == len(KEYS)

        eventually(all_received, "all messages are received", ignoring=(StorageFailed,))


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_receive_that_meets_only_locked_stores_is_refused_in_time(
    request: pytest.FixtureRequest, engine: str
) -> None:
    server: Server = request.getfixturevalue(FIXTURES[engine])
    database = server.new_database()
    with (
        running_cluster(url_of(server, database), brokers=1, stores=STORES) as cluster,
        RawClient(cluster.brokers[0].url, timeout=120) as client,
    ):
        send_to_all(client)
        with locked(server, database, ALL_ROWS[engine]):
            print(f"refused after {refused_in_time(client, reason='another session holds a lock'):.1f} s")


@pytest.mark.parametrize("engine", SHARED_FULL)
def test_requests_to_a_silent_engine_are_refused_in_time(request: pytest.FixtureRequest, engine: str) -> None:
    server: Server | RedisServer = request.getfixturevalue(FIXTURES[engine])
    with (
        holding_proxy(server.port) as proxy,
        running_cluster(new_place(engine, request, proxy.port), brokers=1, stores=STORES) as cluster,
        RawClient(cluster.brokers[0].url, timeout=120) as client,
    ):
        send_to_all(client)
        proxy.hold()
        for wait_ms in (0, 1_000):  # the second while the broker knows that its stores do not answer
            print(f"receive refused after {refused_in_time(client, wait_ms):.1f} s")
        for method, path, content in (
            ("POST", "/v1/tokens", {"name": "one", "roles": ["reader"]}),
            ("DELETE", "/v1/tokens/one", None),
        ):
            began = time.monotonic()
            answer = client.json(method, path, content)
            took = time.monotonic() - began
            print(f"{method} {path}: {answer.status} after {took:.1f} s")
            assert answer.status == 503
            assert took < 20.0
        proxy.go_on()

        def received() -> bool:
            return bool(client.receive("mail", "orders"))

        eventually(received, "a message is received", ignoring=(StorageFailed,))
