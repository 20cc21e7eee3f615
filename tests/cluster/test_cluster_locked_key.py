"""A lock on the table of the cluster's key holds up no beat, and so no broker loses its stores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from broker_clusters import running_cluster
from eventually import eventually
from raw_client import RawClient
from servers import Server
from shared_stores import FIXTURES, MARKS, url_of

LOCKS = {
    "postgresql": "lock table tallystick_cluster_secret in access exclusive mode",
    "mysql": "lock tables tallystick_cluster_secret write",
}
ENGINES = [pytest.param(name, marks=MARKS[name] + [pytest.mark.full] * (name != "postgresql")) for name in LOCKS]
LOCKED_SECONDS = 7.0  # several leases
OFTEN = """
from tallystick.broker.cluster import peer_key
peer_key.FRESH_MS = 100
"""


@contextmanager
def locked(server: Server, database: str, statement: str) -> Iterator[None]:
    with closing(server.connect(database)) as session:
        session.cursor().execute(statement)
        yield


@pytest.mark.parametrize("engine", ENGINES)
def test_brokers_beat_while_the_key_of_the_cluster_is_locked(request: pytest.FixtureRequest, engine: str) -> None:
    server: Server = request.getfixturevalue(FIXTURES[engine])
    database = server.new_database()
    with running_cluster(url_of(server, database), brokers=2, stores=2, lease="2s", prelude=OFTEN) as cluster:
        (one, other) = (RawClient(broker.url) for broker in cluster.brokers)
        with one, other:
            before = {store["id"]: store["epoch"] for store in cluster.view()["stores"]}
            with locked(server, database, LOCKS[engine]):
                until = time.monotonic() + LOCKED_SECONDS
                while time.monotonic() < until:
                    for client in (one, other):
                        answer = client.json("GET", "/readyz")
                        assert answer.status == 200, answer.body
                    time.sleep(0.1)
                if engine == "postgresql":  # which limits how long a statement waits for a lock
                    eventually(lambda: "the key of the cluster cannot be read" in cluster.brokers[0].log_text())
            assert {store["id"]: store["epoch"] for store in cluster.view()["stores"]} == before
