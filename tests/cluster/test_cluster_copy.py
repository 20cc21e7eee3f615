"""A store that is copied into a cluster: which stores may be taken, and how the cluster comes to know it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_support import LEASE_MS, Cluster, running

from shared_stores import url_of
from tallystick.core.errors import Conflict, NotFound
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.store.copying.places import Copied, CopyPlace, CopySettings, copy_store
from tallystick.store.rocksdb import open_rocksdb
from tallystick.store.shared.memory import MemoryCluster
from tallystick.store.shared.opening import registry_at, server_at
from tallystick.store.shared.registry import Member, Registry
from tallystick.store.shared.visit import Visit

LONG_MS, SHORT_MS = 600_000, 100


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with contextlib.closing(open_rocksdb(tmp_path / "data")) as store:
        store.write([Send([OutgoingMessage("orders", b"v")])], 1_700_000_000_000)
    return tmp_path / "data"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue("postgres")
    return url_of(server, server.new_database())


@pytest.fixture
def registry(url: str) -> Iterator[Registry]:
    made = registry_at(url)
    yield made
    made.close()


def copied(data: Path, url: str, number: int, *, take: bool = False) -> Copied:
    settings = CopySettings(LEASE_MS, take=take, allow_weak_durability=True)
    return copy_store(CopyPlace(str(data)), CopyPlace(url, number), settings, lambda _: None, lambda _: None)


def ids(registry: Registry) -> list[str]:
    return [holding.id for holding in registry.look(Member("looker", "", "", leaving=True)).holdings]


# --- which stores may be taken -------------------------------------------------------------------------------------


def test_a_store_is_taken_from_nobody_and_from_the_dead_and_not_from_the_living() -> None:
    cluster = MemoryCluster(2)
    owner = Member("owner", "one", "http://one", beat=1)
    assert cluster.claim(1, 0, owner.id) == 1
    cluster.look(owner)
    with beating(cluster, owner), pytest.raises(Conflict, match="belongs to one at http://one, which is alive"):
        visited(cluster, 1, LONG_MS)
    visited(cluster, 1, SHORT_MS)
    visited(cluster, 0, LONG_MS)
    with pytest.raises(NotFound, match="stores 0 to 1, and no store 2"):
        visited(cluster, 2, LONG_MS)
    assert cluster.look(owner).members == (owner,)


def test_a_store_is_taken_from_the_living_on_demand() -> None:
    cluster = MemoryCluster(1)
    owner = Member("owner", "one", "http://one", beat=1)
    cluster.claim(0, 0, owner.id)
    with beating(cluster, owner):
        visited(cluster, 0, LONG_MS, from_the_living=True)
    assert [(one.epoch, one.owner) for one in cluster.look(owner).holdings] == [(2, "")]


def visited(cluster: MemoryCluster, number: int, lease_ms: int, from_the_living: bool = False) -> None:
    visit = Visit(cluster, number, "test")
    try:
        assert visit.take(lease_ms, from_the_living).number == number
    finally:
        visit.end()


@contextlib.contextmanager
def beating(cluster: MemoryCluster, owner: Member) -> Iterator[None]:
    end = threading.Event()

    def beat() -> None:
        beats = owner.beat
        while not end.wait(0.01):
            cluster.look(Member(owner.id, owner.name, owner.url, beat=(beats := beats + 1)))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


# --- what the cluster knows ----------------------------------------------------------------------------------------


@pytest.mark.postgresql
def test_a_cluster_that_is_made_later_finds_the_store_under_its_number(
    data: Path, url: str, registry: Registry
) -> None:
    assert registry.made() == 0
    made = copied(data, url, 1)
    assert registry.made() == 0
    registry.make(3)
    assert registry.made() == 3
    assert ids(registry)[1] == made.store


@pytest.mark.postgresql
def test_a_cluster_learns_the_id_of_the_store_that_was_copied_into_it(data: Path, url: str, registry: Registry) -> None:
    registry.make(3)
    before = ids(registry)
    made = copied(data, url, 1)
    assert ids(registry) == [before[0], made.store, before[2]]
    with pytest.raises(Conflict, match="in this cluster already, under the number 1"):
        copied(data, url, 2)
    epoch = {one.number: one.epoch for one in registry.look(Member("looker", "", "", leaving=True)).holdings}[1]
    assert not registry.rename(1, epoch - 1, "other")
    assert ids(registry)[1] == made.store


@pytest.mark.full
@pytest.mark.postgresql
async def test_a_store_gets_no_other_id_under_the_eyes_of_brokers(data: Path, url: str, registry: Registry) -> None:
    registry.make(2)
    async with running(Cluster(registry, lambda number: server_at(url, number)), "a", "b"):
        before = ids(registry)
        for take, reason in ((False, "belongs to .* which is alive"), (True, "stop all brokers of the cluster first")):
            with pytest.raises(Conflict, match=reason):
                await asyncio.to_thread(copied, data, url, 1, take=take)
        assert ids(registry) == before


@pytest.mark.full
@pytest.mark.postgresql
async def test_brokers_leave_the_store_alone_while_it_is_copied_and_serve_it_afterwards(
    data: Path, url: str, registry: Registry, tmp_path: Path
) -> None:
    registry.make(2)
    made = copied(data, url, 1)
    async with running(Cluster(registry, lambda number: server_at(url, number)), "a", "b") as cluster:
        go_on, begun = threading.Event(), threading.Event()

        def wait(_: int) -> None:
            begun.set()
            assert go_on.wait(60)

        copying = asyncio.create_task(asyncio.to_thread(copied_out, url, 1, tmp_path / "out", wait))
        await asyncio.to_thread(begun.wait, 60)
        await asyncio.sleep(2 * LEASE_MS / 1000)  # longer than a dead owner keeps a store
        assert not any(made.store in site.stores() for site in cluster.sites.values())
        go_on.set()
        assert (await copying).store == made.store
        await cluster.until_spread("a", "b")
        (site,) = (site for site in cluster.sites.values() if made.store in site.stores())
        assert site.broker(made.store).door().store_id == made.store
        assert sum((await site.broker(made.store).door().topic("orders")).ends) == 1


def copied_out(url: str, number: int, target: Path, on_copied: Callable[[int], None]) -> Copied:
    settings = CopySettings(LEASE_MS, take=True)
    return copy_store(CopyPlace(url, number), CopyPlace(str(target)), settings, on_copied, lambda _: None)


@pytest.mark.postgresql
def test_who_names_a_store_that_a_cluster_does_not_have_is_told_which_it_has(
    url: str, registry: Registry, tmp_path: Path
) -> None:
    registry.make(4)
    settings = CopySettings(LEASE_MS, allow_weak_durability=True)
    places = CopyPlace(url, 9), CopyPlace(str(tmp_path / "copy"))
    with pytest.raises(NotFound, match="the cluster there has the stores 0 to 3"):
        copy_store(*places, settings, lambda _: None, lambda _: None)
