"""What every registry must do, and nodes over the one of a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec
import pytest
from cluster_support import Cluster, running

from servers import redis_server
from shared_stores import MARKS, SHARED, new_place
from tallystick.core.errors import ConfigError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare
from tallystick.store.kv.engine import Changes, Superseded
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.memory import MemoryCluster
from tallystick.store.shared.opening import SharedStore, open_shared, registry_at, server_at
from tallystick.store.shared.registry import Member, Registry, Seen
from tallystick.store.shared.server import ServerAway, SharedServer

STORES = 3


class Ground:
    """A cluster that nobody has used: its registry, as each broker reaches it, and its stores."""

    def __init__(self, registry: Callable[[], Registry], server: Callable[[int], SharedServer]) -> None:
        self._registry, self._server = registry, server
        self._opened: list[Registry | SharedServer] = []

    def registry(self) -> Registry:
        self._opened.append(made := self._registry())
        return made

    def engine(self, number: int, epoch: int) -> SharedEngine:
        self._opened.append(server := self._server(number))
        return SharedEngine(server, epoch)

    def close(self) -> None:
        for each in self._opened:
            each.close()


# Redis, which is started in a moment, is in the short run too.
SERVERS = [pytest.param(one.values[0], marks=MARKS["redis"]) if one.values[0] == "redis" else one for one in SHARED]


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    return new_place(request.param, request)


@pytest.fixture(params=["memory", *SERVERS])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    if request.param == "memory":
        memory = MemoryCluster(STORES)
        ground = Ground(lambda: memory, memory.server)
    else:
        url = new_place(request.param, request)
        ground = Ground(lambda: registry_at(url), lambda number: server_at(url, number))
        ground.registry().make(STORES)
    yield ground
    ground.close()


def member(name: str, beat: int = 1, leaving: bool = False) -> Member:
    return Member(name, name, f"http://{name}", f"{name}:7441", beat, leaving)


def owners(seen: Seen) -> list[tuple[int, str]]:
    return [(holding.epoch, holding.owner) for holding in seen.holdings]


def test_a_look_tells_of_me_and_shows_everybody(ground: Ground) -> None:
    ground.registry().look(member("a", beat=7))
    seen = ground.registry().look(member("b", leaving=True))
    assert set(seen.members) == {member("a", beat=7), member("b", leaving=True)}
    assert [holding.number for holding in seen.holdings] == list(range(STORES))
    assert len({holding.id for holding in seen.holdings}) == STORES
    assert owners(seen) == [(0, "")] * STORES
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Seen) == seen, "numbers are numbers to everybody"
    again = ground.registry().look(member("a", beat=8, leaving=True))
    assert set(again.members) == {member("a", beat=8, leaving=True), member("b", leaving=True)}


def test_the_engines_clock_goes_on(ground: Ground) -> None:
    registry = ground.registry()
    first = registry.look(member("a")).now_ms
    assert abs(first - time.time() * 1000) < 3_600_000  # milliseconds since the epoch, on this machine's own server
    time.sleep(0.01)
    assert registry.look(member("a")).now_ms > first


def test_a_cluster_is_made_once(ground: Ground) -> None:
    before = ground.registry().look(member("a")).holdings
    ground.registry().make(STORES)
    assert ground.registry().look(member("a")).holdings == before
    with pytest.raises(ConfigError, match=f"made with {STORES} stores"):
        ground.registry().make(STORES + 1)


def test_it_is_known_how_many_stores_were_made(ground: Ground) -> None:
    assert ground.registry().made() == STORES


def test_a_store_is_called_by_another_id_by_its_owner_alone(ground: Ground) -> None:
    registry = ground.registry()
    before = [holding.id for holding in registry.look(member("a")).holdings]
    epoch = won(registry, 1, 0, "a")
    assert not registry.rename(1, epoch - 1, "other")
    assert [holding.id for holding in registry.look(member("a")).holdings] == before
    assert registry.rename(1, epoch, "other")
    assert registry.rename(1, epoch, "other")  # asked again
    assert [holding.id for holding in ground.registry().look(member("a")).holdings] == [before[0], "other", before[2]]


def won(registry: Registry, number: int, epoch: int, owner: str) -> int:
    """The epoch of a claim that is the only one."""
    claimed = registry.claim(number, epoch, owner)
    assert claimed is not None
    assert claimed > epoch
    return claimed


def test_a_claim_succeeds_for_one_who_knows_the_epoch(ground: Ground) -> None:
    registry = ground.registry()
    first = won(registry, 1, 0, "a")
    assert registry.claim(1, 0, "b") is None
    assert registry.claim(1, first + 1, "b") is None
    second = won(registry, 1, first, "b")
    assert owners(registry.look(member("a"))) == [(0, ""), (second, "b"), (0, "")]


def test_an_epoch_that_a_failover_took_back_is_not_given_again(url: str) -> None:
    """Each of these is the first claim of its store."""
    with closing(registry_at(url)) as registry:
        registry.make(STORES)
        assert len({won(registry, number, 0, "a") for number in range(STORES)}) == STORES


def test_of_many_who_claim_at_once_one_wins_each_epoch(ground: Ground) -> None:
    """Each claims again and again what it sees. Who wins an epoch is alone with it, and all epochs have a winner."""
    names = [f"m{number}" for number in range(6)]
    together = threading.Barrier(len(names))

    def strive(name: str) -> list[int]:
        registry = ground.registry()
        together.wait()
        epochs = []
        for _ in range(20):
            (seen, *_) = registry.look(member(name)).holdings
            claimed = registry.claim(0, seen.epoch, name)
            if claimed is not None:
                epochs.append(claimed)
        return epochs

    with ThreadPoolExecutor(len(names)) as pool:
        winners = dict(zip(names, pool.map(strive, names), strict=True))
    epochs = [epoch for each in winners.values() for epoch in each]
    assert len(epochs) == len(set(epochs))
    last = max(epochs)
    (seen, *_) = ground.registry().look(member("a")).holdings
    assert (seen.epoch, seen.owner) == (last, next(name for name, each in winners.items() if last in each))


def test_of_many_who_know_the_same_epoch_one_wins(ground: Ground) -> None:
    names = [f"m{number}" for number in range(4)]
    registries = {name: ground.registry() for name in names}
    epoch = 0
    with ThreadPoolExecutor(len(names)) as pool:
        for _ in range(20):
            known = epoch
            claims = pool.map(lambda name, known=known: registries[name].claim(0, known, name), names)
            (epoch,) = [claimed for claimed in claims if claimed is not None]


def test_a_claim_shuts_out_the_owner_before(ground: Ground) -> None:
    registry = ground.registry()
    first = won(registry, 0, 0, "a")
    old = ground.engine(0, first)
    changes = Changes()
    changes.keys["index"][b"x"] = b"1"
    old.write(changes)
    second = won(registry, 0, first, "b")
    with pytest.raises(Superseded):
        old.write(changes)
    with pytest.raises(Superseded):
        ground.engine(0, first)
    new = ground.engine(0, second)
    assert new.get("index", b"x") == b"1"
    new.write(changes)


def test_a_release_is_heard_only_under_the_epoch_of_the_owner(ground: Ground) -> None:
    registry = ground.registry()
    first = won(registry, 0, 0, "a")
    second = won(registry, 0, first, "b")
    registry.release(0, first)
    assert owners(registry.look(member("a")))[0] == (second, "b")
    registry.release(0, second)
    assert owners(registry.look(member("a")))[0] == (second, "")
    won(registry, 0, second, "a")


def test_the_forgotten_are_seen_no_more_until_they_tell_of_themselves(ground: Ground) -> None:
    registry = ground.registry()
    registry.look(member("a"))
    registry.forget("a")
    registry.forget("nobody")
    assert [each.id for each in registry.look(member("b")).members] == ["b"]
    registry.look(member("a"))
    assert {each.id for each in registry.look(member("b")).members} == {"a", "b"}


def test_many_brokers_make_the_same_cluster_at_once(url: str) -> None:
    registries = [registry_at(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda registry: registry.make(2), registries))
    seen = [registry.look(member("a")).holdings for registry in registries]
    assert len(set(seen)) == 1
    assert len(seen[0]) == 2
    for registry in registries:
        registry.close()


def test_a_store_from_before_the_cluster_keeps_its_id(url: str) -> None:
    registry = registry_at(url)
    assert registry.stored_ids() == {}
    alone = open_shared(url, 1, allow_weak_durability=True)
    assert registry.stored_ids() == {1: alone.id}
    registry.make(2)
    (_, holding) = registry.look(member("a")).holdings
    assert holding.id == alone.id
    assert holding.epoch == alone.epoch
    alone.close()
    registry.close()


def test_a_store_is_called_by_the_clusters_name_for_it(url: str) -> None:
    registry = registry_at(url)
    registry.make(1)
    (holding,) = registry.look(member("a")).holdings
    epoch = registry.claim(0, holding.epoch, "a")
    assert epoch is not None
    store = SharedStore(server_at(url, 0), epoch, StoreSettings(), holding.id)
    assert store.id == holding.id
    store.close()
    registry.close()


def test_a_redis_that_is_full_still_holds_a_cluster() -> None:
    """Who is there and who owns what takes no more room than before."""
    with redis_server() as server, closing(registry_at(server.url)) as registry, closing(server.connect()) as client:
        registry.make(STORES)
        registry.look(member("a"))
        client.config_set("maxmemory", "1")
        registry.look(member("a", beat=2))
        epoch = won(registry, 0, 0, "a")
        registry.release(0, epoch)
        assert registry.look(member("a", beat=3)).members == (member("a", beat=3),)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "redis"])
def test_a_server_that_is_not_there_is_away(scheme: str) -> None:
    registry = registry_at(f"{scheme}://nobody@127.0.0.1:1/0")
    with pytest.raises(ServerAway, match=r"(?i)refused"):
        registry.look(member("a"))
    registry.close()


def test_not_every_server_holds_a_cluster() -> None:
    with pytest.raises(ConfigError, match="begins with none of postgresql:"):
        registry_at("ftp://somewhere")


async def test_nodes_on_a_real_server_take_over_what_one_who_died_has_left(url: str) -> None:
    registry = registry_at(url)
    registry.make(2)
    try:
        async with running(Cluster(registry, lambda number: server_at(url, number)), "a", "b") as cluster:
            (store_id,) = cluster.sites["a"].stores()
            broker = cluster.sites["a"].broker(store_id)
            await broker.door().do(Prepare("g1", "shop", [OutgoingMessage("orders", b"half")]))
            cluster.sites["a"].die()
            await cluster.until_spread("b")
            taken = cluster.sites["b"].broker(store_id).door()
            await taken.do(Commit("g1"))
            (topic,) = (await taken.ends(None, None, 0))[0]
            assert sum(topic.ends) == 1
    finally:
        registry.close()
