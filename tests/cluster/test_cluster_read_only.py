"""A shared engine that takes no writes for a while: why is told, nothing is acknowledged, and work goes on later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import NamedTuple

import pytest
from cluster_support import Cluster, running

from eventually import eventually_async
from servers import DATABASE, RedisServer, Server, mariadb_server, postgres_server, redis_server
from shared_stores import url_of
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import StorageFailed, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.local import free_port
from tallystick.store.shared.opening import registry_at, server_at
from tallystick.store.shared.registry import Member
from tallystick.store.shared.server import ServerAway


class Place(NamedTuple):
    """A server, and how it is made to refuse writes and to take them again."""

    url: str
    refuse: Callable[[], object]
    allow: Callable[[], object]
    reason: str


@contextmanager
def postgresql() -> Iterator[Place]:
    with postgres_server() as server:

        def read_only(word: str) -> None:
            server.execute(f"alter system set default_transaction_read_only = {word}", "postgres")
            server.execute("select pg_reload_conf()", "postgres")

        # What ends the refusal must be allowed itself: a session may say that it writes.
        def allow() -> None:
            with closing(server.connect("postgres", autocommit=True)) as session:
                session.execute("set default_transaction_read_only = off")
                session.execute("alter system set default_transaction_read_only = off")
                session.execute("select pg_reload_conf()")

        yield Place(url_of(server, DATABASE), lambda: read_only("on"), allow, "read-only")


@contextmanager
def mariadb() -> Iterator[Place]:
    with mariadb_server() as server:
        # Not the administrator's: that one writes to a server that is read-only.
        server.execute("create user clerk@'127.0.0.1' identified by 'word'")
        server.execute(f"grant all on {DATABASE}.* to clerk@'127.0.0.1'")
        yield Place(
            f"mysql://clerk:word@{server.host}:{server.port}/{DATABASE}",
            lambda: _set_read_only(server, 1),
            lambda: _set_read_only(server, 0),
            "read.only",
        )


def _set_read_only(server: Server, value: int) -> None:
    server.execute(f"set global read_only = {value}")


@contextmanager
def redis_as_a_replica() -> Iterator[Place]:
    with redis_server() as server:
        refuse, allow = (lambda: _follow(server, "127.0.0.1", free_port())), (lambda: _follow(server, "NO", "ONE"))
        yield Place(server.url, refuse, allow, "is a replica")


def _follow(server: RedisServer, host: str, port: int | str) -> None:
    with closing(server.connect()) as client:
        client.execute_command("REPLICAOF", host, port)


@contextmanager
def redis_without_replicas() -> Iterator[Place]:
    with redis_server() as server:
        refuse, allow = (lambda: _need_replicas(server, 1)), (lambda: _need_replicas(server, 0))
        yield Place(server.url, refuse, allow, "min-replicas-to-write")


def _need_replicas(server: RedisServer, count: int) -> None:
    with closing(server.connect()) as client:
        client.config_set("min-replicas-to-write", count)


Kind = Callable[[], AbstractContextManager[Place]]
KINDS = [
    pytest.param(postgresql, marks=pytest.mark.postgresql),
    pytest.param(mariadb, marks=[pytest.mark.mariadb, pytest.mark.full]),
    redis_as_a_replica,
    redis_without_replicas,
]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_that_is_read_only_is_told_of_and_work_goes_on_when_it_is_not(kind: Kind) -> None:
    with kind() as place, closing(registry_at(place.url)) as registry:
        registry.make(2)
        async with running(Cluster(registry, lambda number: server_at(place.url, number)), "a") as cluster:
            store_id = min(cluster.ids)
            door = cluster.sites["a"].broker(store_id).door()
            await send(door, "before")
            place.refuse()
            with pytest.raises(StorageFailed, match=place.reason) as refused:
                await refused_at_last(door)
            assert refused.value.status == 503
            with pytest.raises(ServerAway, match=place.reason):
                registry.look(Member("looker", "", ""))
            place.allow()
            await eventually_async(lambda: goes_on(door), "it takes messages again")
            assert cluster.sites["a"].broker(store_id).door().not_ready() is None


async def send(door: BrokerDoor, name: str) -> None:
    await door.do(Send([OutgoingMessage("orders", name.encode())], name))


async def refused_at_last(door: BrokerDoor) -> None:
    """A server takes a moment to hear of its new settings."""
    for turn in range(1_000):
        await send(door, f"late-{turn}")


async def goes_on(door: BrokerDoor) -> bool:
    try:
        await send(door, "after")
    except TallystickError:
        return False
    return True
