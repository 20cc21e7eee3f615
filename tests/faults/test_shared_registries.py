"""The registry of a cluster while connections are cut at each of its calls, and while its server is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest
from shared_stream import CutOnce

from cutting_proxy import Cut, CuttingProxy, cutting_proxy
from eventually import eventually
from servers import RedisServer, Server, mariadb_server, postgres_server, redis_server
from shared_stores import CLUSTER_DB, FIXTURES, MARKS, SHARED, SHARED_FULL, new_place, url_of
from tallystick.core.errors import StorageFailed
from tallystick.store.kv.engine import Changes, EngineFailed
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.opening import registry_at, server_at
from tallystick.store.shared.registry import Holding, Member, Registry
from tallystick.store.shared.server import ServerAway

pytestmark = pytest.mark.fault

STORES = 2
ME = Member("me", "me", "http://me")
LOOKER = Member("looker", "looker", "http://looker")
MOST_PIECES = 60  # that one call, with what comes before it on a new connection, is sent in

QUICK = [pytest.param(one.values[0], marks=MARKS["redis"]) if one.values[0] == "redis" else one for one in SHARED]


class Ways:
    """Two ways to one registry: a safe one, and one that is cut."""

    def __init__(self, safe: Registry, cut: Registry, proxy: CuttingProxy) -> None:
        self.safe, self.cut, self._proxy = safe, cut, proxy

    def holding(self) -> Holding:
        return self.safe.look(LOOKER).holdings[0]

    def cut_everywhere(self, how: Cut, call: Callable[[], object], check: Callable[[bool], None]) -> None:
        """Makes a call, cut around each piece that is sent for it on a new connection, one after the other. `check` is
        told whether it was answered."""
        for piece in range(MOST_PIECES):
            self.cut.cut()  # type: ignore[attr-defined]
            once = CutOnce(piece, how)
            self._proxy._choose = once
            answered = True
            try:
                call()
            except ServerAway:
                answered = False
            self._proxy.calm()
            check(answered)
            if once.left >= 0:
                assert answered
                assert piece >= 2, "nothing was cut"
                return
        pytest.fail("a call has fewer pieces")


@pytest.fixture(params=QUICK)
def ways(request: pytest.FixtureRequest) -> Iterator[Ways]:
    server = request.getfixturevalue(FIXTURES[request.param])
    with cutting_proxy(server.port) as proxy:
        url = new_place(request.param, request)
        with closing(registry_at(url)) as safe, closing(registry_at(_through(proxy, server, url))) as cut:
            safe.make(STORES)
            yield Ways(safe, cut, proxy)


def _through(proxy: CuttingProxy, server: Any, url: str) -> str:
    return url.replace(f":{server.port}/", f":{proxy.port}/")


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_claim_that_is_cut_off_was_made_by_us_or_not_at_all(ways: Ways, how: Cut) -> None:
    before = ways.holding()

    def claim() -> None:
        nonlocal before
        before = ways.holding()
        ways.cut.claim(0, before.epoch, ME.id)

    def check(answered: bool) -> None:
        after = ways.holding()
        assert (after.epoch > before.epoch) == (after.owner == ME.id)
        if answered:
            assert after.owner == ME.id
        ways.safe.claim(0, after.epoch, "somebody else")

    ways.cut_everywhere(how, claim, check)


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_release_that_is_cut_off_may_be_asked_for_again(ways: Ways, how: Cut) -> None:
    def release() -> None:
        held = ways.safe.claim(0, ways.holding().epoch, ME.id)
        assert held is not None
        ways.cut.release(0, held)

    def check(answered: bool) -> None:
        held = ways.holding()
        assert held.owner in ("", ME.id)
        assert not (answered and held.owner)
        ways.cut.release(0, held.epoch)
        assert ways.holding().owner == ""

    ways.cut_everywhere(how, release, check)


@pytest.mark.parametrize("how", ["before", "after"])
def test_looks_and_forgettings_that_are_cut_off_do_no_harm(ways: Ways, how: Cut) -> None:
    def seen() -> set[str]:
        return {member.id for member in ways.safe.look(LOOKER).members}

    def looked(answered: bool) -> None:
        assert not answered or ME.id in seen()
        assert ME in ways.cut.look(ME).members

    def forgotten(answered: bool) -> None:
        assert not (answered and ME.id in seen())
        ways.safe.look(ME)

    ways.cut_everywhere(how, lambda: ways.cut.look(ME), looked)
    ways.cut_everywhere(how, lambda: ways.cut.forget(ME.id), forgotten)


@pytest.mark.full
@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("engine", [pytest.param(name, marks=MARKS[name]) for name in FIXTURES])
def test_a_cluster_whose_making_is_cut_off_is_made_as_a_whole_or_not_at_all(
    engine: str, how: Cut, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(FIXTURES[engine])
    for piece in range(MOST_PIECES):
        url = new_place(engine, request)
        with cutting_proxy(server.port) as proxy, closing(registry_at(_through(proxy, server, url))) as registry:
            once = CutOnce(piece, how)
            proxy._choose = once
            try:
                registry.make(STORES)
            except ServerAway:
                proxy.calm()
                registry.make(STORES)
            proxy.calm()
            assert len({holding.id for holding in registry.look(ME).holdings}) == STORES
            if once.left >= 0:
                return
    pytest.fail("a cluster is made with fewer pieces")


# --- the server ------------------------------------------------------------------------------------------------------

RUNS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "postgresql": postgres_server,
    "mysql": mariadb_server,
    "redis": lambda: redis_server(appendonly="yes", appendfsync="always"),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", SHARED_FULL)
def test_no_claim_is_lost_and_no_owner_comes_back_when_the_server_is_killed(engine: str) -> None:
    """Two claim a store from each other and write, while the server dies. What was told stays told: epochs only grow,
    what an owner has written is there, and the one before writes nothing."""
    with RUNS[engine]() as server, ThreadPoolExecutor(3) as pool:
        url = _url(server)
        with closing(registry_at(url)) as registry:
            registry.make(STORES)
            over: list[bool] = []
            owners = [pool.submit(_claim_and_write, url, name, over) for name in ("a", "b")]
            for kill in range(3):
                time.sleep(random.Random(kill).uniform(0.1, 0.4))
                server.kill()
                server.start()
            time.sleep(0.1)
            over.append(True)
            told = [each for owner in owners for each in owner.result()]
            held = eventually(lambda: registry.look(LOOKER), ignoring=(ServerAway,)).holdings[0]
            last = eventually(lambda: registry.claim(0, held.epoch, "c"), ignoring=(ServerAway,))
            assert held.epoch >= max(epoch for epoch, _ in told)
            with closing(server_at(url, 0)) as store:
                there = {key for key, _ in SharedEngine(store, last).scan("index", b"unit", b"unit~")}
            assert {name for _, name in told} <= there


def _url(server: Server | RedisServer) -> str:
    if isinstance(server, RedisServer):
        return f"redis://{server.host}:{server.port}/{CLUSTER_DB}"
    return url_of(server, server.database)


def _claim_and_write(url: str, name: str, over: list[bool]) -> list[tuple[int, bytes]]:
    """The epoch and the name of each unit that was acknowledged."""
    told: list[tuple[int, bytes]] = []
    known = 0
    with closing(registry_at(url)) as registry:
        while not over:
            try:
                held = registry.look(Member(name, name, "")).holdings[0]
                assert held.epoch >= known, "an epoch was taken back"
                known = held.epoch
                if (epoch := registry.claim(0, held.epoch, name)) is not None:
                    told += _write(url, epoch, name)
                    known = epoch
            except ServerAway:
                time.sleep(0.01)
    return told


def _write(url: str, epoch: int, name: str) -> Iterator[tuple[int, bytes]]:
    with closing(server_at(url, 0)) as server:
        try:
            engine = SharedEngine(server, epoch)
            for turn in range(5):
                changes = Changes()
                unit = f"unit {epoch} {turn} {name}".encode()
                changes.keys["index"][unit] = b""
                engine.write(changes)
                yield epoch, unit
        except (EngineFailed, StorageFailed):
            return  # the other has it, or the server is away
