"""Failovers of the engines themselves: a server dies for good, and another that has its data goes on.

Two own a store one after the other. The second writes while the server dies. Afterwards everything that was told is
there, and the first one, which has been superseded before the failover, is refused after it as well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import psutil
import pytest
from shared_stream import NOW, Stream, stored

from eventually import eventually
from server_clusters import PostgresPair, RedisCluster, galera_cluster, postgres_pair, redis_cluster
from servers import DATABASE, RedisServer, Server
from shared_stores import url_of
from tallystick.core.errors import StorageFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared import postgresql_session, redis
from tallystick.store.shared.opening import SharedStore, registry_at, server_at
from tallystick.store.shared.redis_link import store_tag
from tallystick.store.shared.registry import Member
from tallystick.store.shared.server import ServerAway

pytestmark = [pytest.mark.fault, pytest.mark.full, pytest.mark.timeout(600)]

STORES = 4
# At a Galera node the beginning of a transaction waits for all that was committed before it.
WAITS = "select 1 from information_schema.processlist where info = 'begin'"
LOOKER = Member("looker", "looker", "http://looker")


class Cluster:
    """A cluster of stores at a URL, and what was opened there."""

    def __init__(self, url: str, number: int = 0) -> None:
        self.url, self.number = url, number
        self._opened = ExitStack()
        self.registry = self._opened.enter_context(closing(registry_at(url)))
        eventually(self._make, "the cluster is made", ignoring=(ServerAway,))

    def _make(self) -> bool:
        self.registry.make(STORES)
        return True

    def epoch(self) -> int:
        seen = eventually(lambda: self.registry.look(LOOKER), "somebody answers", ignoring=(ServerAway,))
        return seen.holdings[self.number].epoch

    def claim(self, owner: str, url: str = "") -> SharedStore:
        """Claimed, and opened; the store at another URL, if there is one."""
        epoch = eventually(
            lambda: self.registry.claim(self.number, self.epoch(), owner), f"{owner} has it", ignoring=(ServerAway,)
        )

        def opened() -> SharedStore:
            server = server_at(url or self.url, self.number)
            try:
                return SharedStore(server, epoch, StoreSettings())
            except BaseException:
                server.close()
                raise

        store = eventually(opened, "it is open", ignoring=(StorageFailed,))
        return self._opened.enter_context(closing(store))

    def close(self) -> None:
        self._opened.close()


@contextmanager
def cluster_at(url: str, number: int = 0) -> Iterator[Cluster]:
    with closing(Cluster(url, number)) as cluster:
        yield cluster


def fail_over(cluster: Cluster, failing: Callable[[], None]) -> None:
    """Units are written before it, while it happens, and after it; all that was told is there, once."""
    first = cluster.claim("first")
    Stream(first).unit("before")
    second = cluster.claim("second")
    stream = Stream(second, between=lambda: time.sleep(0.05))
    stream.asked.update(stored(second))
    stream.told.update(stored(second))
    with ThreadPoolExecutor(1) as killer:  # to the end: what its thread has started ends with it
        for number in range(10):
            stream.unit(f"calm-{number}")
        done = killer.submit(failing)
        number = 0
        while not done.done() or number < 30:
            stream.unit(f"u{number}")
            number += 1
        done.result()
        stream.check(second)
        refused(first)
        third = cluster.claim("third")
        stream.check(third)
        assert set(stored(third)) == stream.told == stream.asked
        refused(second)
        Stream(third).unit("after")


def refused(store: SharedStore) -> None:
    """Whatever it tries."""

    def is_refused() -> bool:
        with pytest.raises(StorageFailed) as failed:
            store.write([Send([OutgoingMessage("orders", b"ghost")], "ghost")], NOW)
        store.recover()  # so that it tries again, if it was only that nobody answered
        return "another owner" in str(failed.value)

    eventually(is_refused, "an owner of an earlier epoch is refused")
    assert store.recover() is None


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    with postgres_pair() as made:
        yield made


@pytest.mark.postgresql
def test_a_synchronous_standby_of_postgresql_has_all_that_was_told(pair: PostgresPair) -> None:
    with cluster_at(pair.url) as cluster:
        fail_over(cluster, pair.fail_over)


@pytest.mark.postgresql
def test_a_standby_that_is_promoted_while_the_primary_hangs_is_found_once_for_all_connections(
    pair: PostgresPair,
) -> None:
    """The primary takes connections and says nothing: only the first attempt waits for its time-out."""
    with cluster_at(pair.url) as cluster:
        store = cluster.claim("owner")
        Stream(store).unit("before")
        processes = psutil.Process(pair.primary.process.pid)
        everything = [processes, *processes.children(recursive=True)]
        for process in everything:
            process.suspend()
        try:
            pair.standby.execute("select pg_promote()", "postgres")
            began = time.monotonic()
            eventually(lambda: cluster.registry.look(LOOKER), "the registry answers", ignoring=(ServerAway,))
            eventually(lambda: store.recover() is not None, "the store works")
            Stream(store).unit("after")
            assert time.monotonic() - began < 45
            began = time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda _: cluster.registry.claim(cluster.number, -1, "none"), range(8)))
            for _ in range(8):
                cluster.registry.cut()  # type: ignore[attr-defined]
                cluster.registry.look(LOOKER)
            assert time.monotonic() - began < 20, "new connections begin at the server that works"
        finally:
            pair.primary.process.kill()
            for process in everything:
                with suppress(psutil.NoSuchProcess):
                    process.resume()


@pytest.mark.postgresql
def test_nothing_is_told_before_the_standby_of_postgresql_has_it(
    pair: PostgresPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_session, "ANSWER_SECONDS", 1.0)
    with cluster_at(pair.url) as cluster:
        store = cluster.claim("owner")
        Stream(store).unit("before")
        ((receiver,),) = pair.standby.execute("select pid from pg_stat_wal_receiver", "postgres")
        with paused(receiver), pytest.raises(StorageFailed, match="no answer within 1 s"):
            store.write([Send([OutgoingMessage("orders", b"x")], "late")], NOW)
        eventually(lambda: store.recover() is not None, "it goes on when the standby is back")
        Stream(store).unit("after")


@contextmanager
def paused(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


# --- Galera ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def galera() -> Iterator[list[Server]]:
    with galera_cluster() as nodes:
        yield nodes


@pytest.mark.mariadb
def test_who_opens_a_store_at_another_galera_node_sees_all_that_was_told(galera: list[Server]) -> None:
    """That node is behind: what the others have told waits there until a lock is gone."""
    at = [url_of(node, DATABASE) for node in galera]
    with cluster_at(at[0], 1) as cluster, closing(galera[2].connect()) as locking:
        stream = Stream(cluster.claim("first"))
        stream.unit("before")
        locking.cursor().execute("flush tables with read lock")
        stream.unit("while it is behind", size=1)
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(cluster.claim, "second", at[2])
            try:
                eventually(lambda: galera[2].execute(WAITS), "it waits for what the others have")
                assert not opening.done()
            finally:
                locking.cursor().execute("unlock tables")
            stream.check(opening.result())
        refused(stream.store)


@pytest.mark.mariadb
def test_galera_nodes_have_all_that_was_told_when_one_dies(galera: list[Server]) -> None:
    """The last test with these nodes."""
    hosts = ",".join(f"{node.host}:{node.port}" for node in galera)
    url = url_of(galera[0], DATABASE).replace(f"{galera[0].host}:{galera[0].port}", hosts)
    with cluster_at(url) as cluster:
        fail_over(cluster, galera[0].kill)


# --- Redis Cluster ---------------------------------------------------------------------------------------------------


@pytest.fixture
def nodes() -> Iterator[RedisCluster]:
    with redis_cluster(appendonly="yes", appendfsync="always") as made:
        yield made


def test_a_replica_that_has_confirmed_each_unit_has_all_that_was_told(nodes: RedisCluster) -> None:
    master, _ = nodes.holder_of(store_tag(0))

    def failing() -> None:
        master.kill()
        with cluster_at(nodes.url) as cluster:
            cluster.epoch()  # the replica has taken over
        master.start()  # and is now the replica, without which nothing is confirmed

    with cluster_at(nodes.url + "?wait_replicas=1") as cluster:
        fail_over(cluster, failing)


def test_without_confirmation_a_replica_may_lack_what_was_told_and_the_owner_finds_out(nodes: RedisCluster) -> None:
    master, replica = nodes.holder_of(store_tag(0))
    with cluster_at(nodes.url) as cluster:
        store = cluster.claim("owner")
        stream = Stream(store)
        stream.unit("kept")
        eventually(lambda: _offset(replica) == _offset(master), "the replica has it")
        with paused(replica.process.pid):
            _drop_replicas(master)
            Stream(store).unit("lost")
            master.kill()
        with pytest.raises(StorageFailed):
            store.write([Send([OutgoingMessage("orders", b"x")], "next")], NOW)
        eventually(lambda: store.recover() is not None, "the replica has taken over")
        stream.check(store)


def test_a_unit_that_no_replica_confirms_is_not_told(nodes: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "_WAIT_MS", 100)
    _, replica = nodes.holder_of(store_tag(0))
    with cluster_at(nodes.url + "?wait_replicas=1") as cluster:
        store = cluster.claim("owner")
        with paused(replica.process.pid), pytest.raises(StorageFailed, match="0 of 1 replicas"):
            store.write([Send([OutgoingMessage("orders", b"x")], "late")], NOW)
        eventually(lambda: store.recover() is not None, "it goes on when the replica is back")
        Stream(store).unit("after")


def test_a_look_goes_on_with_the_stores_whose_master_is_there() -> None:
    with (
        redis_cluster(
            appendonly="yes", appendfsync="always", cluster_node_timeout="600000", cluster_require_full_coverage="no"
        ) as nodes,
        cluster_at(nodes.url) as cluster,
        closing(registry_at(nodes.url)) as late,
    ):
        registrar, _ = nodes.holder_of("{ts:cluster}")
        masters = {number: nodes.holder_of(store_tag(number))[0] for number in range(STORES)}
        dead = next(master for master in masters.values() if master is not registrar)
        gone = {number for number, master in masters.items() if master is dead}
        assert gone != set(masters)
        claims = {number: cluster.registry.claim(number, 0, "owner") for number in masters}
        before = cluster.registry.look(LOOKER).holdings
        assert {each.number: (each.epoch, each.owner) for each in before} == {
            number: (epoch, "owner") for number, epoch in claims.items()
        }
        dead.kill()
        assert cluster.registry.look(LOOKER).holdings == before, "what was known of the stores that are gone"
        for holding in before:
            if holding.number in gone:
                with pytest.raises(ServerAway):
                    cluster.registry.claim(holding.number, holding.epoch, "next")
            else:
                assert cluster.registry.claim(holding.number, holding.epoch, "next") is not None
        # Of somebody who has never seen them nothing is known of these; of the others all is.
        seen = {holding.number: holding.owner for holding in late.look(LOOKER).holdings}
        assert seen == {number: "" if number in gone else "next" for number in masters}
        dead.start()
        for number in gone:
            again = eventually(
                lambda number=number: cluster.registry.claim(number, claims[number], "next"), ignoring=(ServerAway,)
            )
            assert cluster.registry.look(LOOKER).holdings[number].epoch == again


def _drop_replicas(node: RedisServer) -> None:
    """What is sent to them later is not on its way already."""
    with closing(node.connect()) as client:
        client.execute_command("CLIENT KILL TYPE replica")


def _offset(node: RedisServer) -> int:
    with closing(node.connect()) as client:
        info: Any = client.info("replication")
    return int(info["master_repl_offset"])
