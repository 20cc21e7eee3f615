"""Another session holds a lock on the tables of a shared engine: requests are refused in time, and the refusal says
why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from broker_clusters import running_cluster
from eventually import eventually
from raw_client import RawClient
from servers import Server
from shared_stores import FIXTURES, MARKS, url_of

MOST_SECONDS = 18  # three tries of 10 s were made before
WAITING = 3


@contextmanager
def locked(server: Server, database: str, statement: str) -> Iterator[None]:
    with closing(server.connect(database)) as session:
        session.cursor().execute(statement)
        yield
        session.rollback()


LOCKS = {
    "postgresql": "lock table tallystick_store_log in access exclusive mode",
    "mysql": "lock tables tallystick_store_log write",
}


@pytest.mark.full
@pytest.mark.parametrize("engine", [pytest.param(name, marks=MARKS[name]) for name in LOCKS])
def test_a_request_that_meets_a_locked_table_is_refused_in_time_and_told_why(
    request: pytest.FixtureRequest, engine: str
) -> None:
    server: Server = request.getfixturevalue(FIXTURES[engine])
    database = server.new_database()
    with (
        running_cluster(url_of(server, database), brokers=1, stores=1) as cluster,
        RawClient(cluster.brokers[0].url) as client,
    ):
        content = {"messages": [{"topic": "orders", "value": 1}]}
        assert client.json("POST", "/v1/messages", content).status == 201
        with locked(server, database, LOCKS[engine]):
            for _ in range(2):  # the second comes while the store is opened again
                began = time.monotonic()
                answer = client.json("POST", "/v1/messages", content)
                took = time.monotonic() - began
                assert (answer.status, answer.problem().code) == (503, "storage_failed")
                assert took < MOST_SECONDS
                assert "another session holds a lock" in answer.problem().detail
                assert "at the moment" in answer.problem().title
        eventually(lambda: client.json("POST", "/v1/messages", content).status == 201, "work goes on")


@pytest.mark.full
@pytest.mark.parametrize("engine", [pytest.param(name, marks=MARKS[name]) for name in LOCKS])
def test_requests_that_wait_behind_a_locked_table_share_its_time_limit(
    request: pytest.FixtureRequest, engine: str
) -> None:
    """Each of them waited for a limit of its own, one after the other."""
    server: Server = request.getfixturevalue(FIXTURES[engine])
    database = server.new_database()
    content = {"messages": [{"topic": "orders", "value": 1}]}
    with running_cluster(url_of(server, database), brokers=1, stores=1) as cluster:
        url = cluster.brokers[0].url

        def asked(method: str, path: str, body: Any = None) -> tuple[int, str, float]:
            began = time.monotonic()
            with RawClient(url, timeout=120) as client:
                answer = client.json(method, path, body)
            return answer.status, answer.body.decode(), time.monotonic() - began

        assert asked("POST", "/v1/messages", content)[0] == 201
        with RawClient(url) as client:
            client.receive("mail", "orders")
        with locked(server, database, LOCKS[engine]), ThreadPoolExecutor(WAITING + 1) as pool:
            listings = [pool.submit(asked, "GET", "/v1/groups") for _ in range(WAITING)]
            sending = pool.submit(asked, "POST", "/v1/messages", content)
            answers = [answer.result() for answer in (*listings, sending)]
        for status, body, seconds in answers:
            print(f"{status} after {seconds:.1f} s")
            assert (status, "another session holds a lock" in body) == (503, True), body
            assert seconds < MOST_SECONDS
        eventually(lambda: asked("POST", "/v1/messages", content)[0] == 201, "work goes on")
