"""A broker over a real server that becomes slow, takes no writes, or dies: seen from outside, over HTTP."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from asgi import asgi_server
from cutting_proxy import Cut, cutting_proxy
from eventually import eventually
from raw_client import Answer, RawClient
from servers import RedisServer, Server, postgres_server, redis_server
from shared_stores import new_number, url_of
from tallystick.api.app import App, OwnStore, Service
from tallystick.broker.broker import Broker
from tallystick.broker.config import load_config
from tallystick.core.errors import StorageFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare, Send
from tallystick.store.shared.opening import open_shared

MESSAGES = [OutgoingMessage("orders", b"v")]


@contextlib.contextmanager
def broker_on(store_url: str) -> Iterator[str]:
    """The URL of a broker that owns a new store there."""

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Service]:
        config = load_config(flags={"store": "memory"}, environ={})
        store = open_shared(store_url, new_number(), config.store_settings(), allow_weak_durability=True)
        broker = Broker(config, store)
        try:
            yield OwnStore(broker)
        finally:
            await broker.close()

    with asgi_server(App(opened), lifespan="on") as url:
        yield url


def readiness(url: str) -> Answer:
    with RawClient(url) as client:
        return client.json("GET", "/readyz")


def is_ready(url: str) -> bool:
    return readiness(url).status == 200


@pytest.mark.postgresql
def test_a_slow_server_holds_up_those_who_need_it_and_nobody_else(postgres: Server) -> None:
    seconds = [0.0]

    def slowly(_: bytes) -> Cut:
        time.sleep(seconds[0])
        return "no"

    with (
        cutting_proxy(postgres.port, slowly) as proxy,
        broker_on(url_of(postgres, postgres.new_database(), proxy.port)) as url,
        RawClient(url) as client,
    ):
        client.do(Prepare("a", "shop", MESSAGES))
        seconds[0] = 2.0
        committed = threading.Thread(target=_commit, args=(url, "a"))
        committed.start()
        longest = 0.0
        while committed.is_alive():
            began = time.monotonic()
            assert client.json("GET", "/healthz").status == 200
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.02)
        seconds[0] = 0.0
        assert longest < 1.0
        found = client.transaction("a")
        assert found is not None
        assert found.state == "committed"


def _commit(url: str, gid: str) -> None:
    with RawClient(url, timeout=150) as client:
        client.do(Commit(gid))


@pytest.mark.postgresql
def test_a_server_that_takes_no_writes_is_told_of_until_it_takes_them_again(postgres: Server) -> None:
    database = postgres.new_database()
    with broker_on(url_of(postgres, database)) as url, RawClient(url) as client:
        client.do(Prepare("a", "shop", MESSAGES))
        _only_reads(postgres, database, "on")
        with pytest.raises(StorageFailed, match="read-only"):
            client.do(Commit("a"))
        told = readiness(url)
        assert told.status == 503
        assert "read-only" in told.json()["reason"]
        assert client.json("GET", "/healthz").status == 200
        _only_reads(postgres, database, "off")
        eventually(lambda: is_ready(url), "ready again")
        client.do(Commit("a"))
        assert len(client.messages("orders")) == 1


def _only_reads(server: Server, database: str, wanted: str) -> None:
    """As a failover leaves the old primary: sessions are dropped, and new ones find a server that takes no writes."""
    server.execute(f"alter database {database} set default_transaction_read_only = {wanted}")
    server.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{database}'")


@pytest.mark.full
def test_a_redis_that_has_become_a_replica_is_told_of_until_it_is_a_master_again() -> None:
    with redis_server() as server, broker_on(server.url) as url, RawClient(url) as client:
        client.do(Prepare("a", "shop", MESSAGES))
        _replica_of(server, "127.0.0.1", 9)
        with pytest.raises(StorageFailed, match="is a replica, which takes no writes"):
            client.do(Commit("a"))
        assert "is a replica" in readiness(url).json()["reason"]
        _replica_of(server, "NO", "ONE")
        eventually(lambda: is_ready(url), "ready again")
        client.do(Commit("a"))


def _replica_of(server: RedisServer, host: str, port: int | str) -> None:
    with contextlib.closing(server.connect()) as connection:
        connection.execute_command("REPLICAOF", host, port)


@pytest.mark.full
@pytest.mark.postgresql
def test_a_server_that_is_killed_and_comes_back_has_everything_that_was_acknowledged() -> None:
    told: list[str] = []
    with postgres_server() as server, broker_on(url_of(server, server.database)) as url, RawClient(url, 150) as client:
        for turn in range(3):
            sending = threading.Thread(target=_send_until_refused, args=(url, f"turn-{turn}", told))
            sending.start()
            before = len(told)
            eventually(lambda before=before: len(told) > before + 20, "some were sent")
            server.kill()
            sending.join()
            assert readiness(url).status == 503
            assert client.json("GET", "/healthz").status == 200
            server.start()
            eventually(lambda: is_ready(url), "ready again")
        there = [message.gid for message in client.messages("orders")]
        assert len(there) == len(set(there))
        assert set(told) <= set(there)


def _send_until_refused(url: str, name: str, told: list[str]) -> None:
    with RawClient(url, timeout=150) as client, contextlib.suppress(StorageFailed):
        for number in range(1_000_000):
            client.do(Send(MESSAGES, f"{name}-{number}"))
            told.append(f"{name}-{number}")
