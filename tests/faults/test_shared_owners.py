"""Owners of a store that do not know of each other.

Who was superseded stores nothing, whatever it believes and whenever its write arrives. Where the fence is not asked,
the same rounds show that something is lost.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from msgspec import Struct, field
from shared_stream import NOW, stored

from cutting_proxy import Cut, cutting_proxy
from eventually import eventually
from servers import RedisServer
from shared_stores import FIXTURES, SHARED, new_number, new_place
from tallystick.core.errors import StorageFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare, Rollback, Send
from tallystick.store.kv.engine import Changes, Superseded
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.opening import SharedStore, open_shared, server_at
from tallystick.store.shared.server import SharedServer

pytestmark = pytest.mark.fault

MARKED = b"in the middle of it"


@pytest.fixture(params=SHARED)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(engine: str, request: pytest.FixtureRequest) -> str:
    return new_place(engine, request)


def opened(url: str, number: int) -> SharedStore:
    """Claimed, whoever has it."""
    return open_shared(url, number, allow_weak_durability=True)


def sending(gid: str, value: bytes = b"x") -> Send:
    return Send([OutgoingMessage("orders", value)], gid)


# --- one that slept ----------------------------------------------------------------------------------------------


def test_an_owner_that_slept_through_a_takeover_in_the_middle_of_a_unit_stores_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = new_number()
    with closing(opened(url, number)) as first:
        first.write([Prepare("t", "shop", [OutgoingMessage("orders", b"x")])], NOW)
        takeovers: list[SharedStore] = []
        apply = first.server.apply

        def apply_after_a_takeover(epoch: int, unit: int, changes: Changes) -> bool:
            if not takeovers:
                takeovers.append(opened(url, number))
            return apply(epoch, unit, changes)

        monkeypatch.setattr(first.server, "apply", apply_after_a_takeover)
        refuse_the_unit(first)
        with closing(takeovers[0]) as second:
            check_nothing_of_it(second)


def test_a_unit_that_was_sent_before_a_takeover_and_arrives_after_it_stores_nothing(
    engine: str, url: str, request: pytest.FixtureRequest
) -> None:
    number = new_number()
    under_way, may_arrive = threading.Event(), threading.Event()

    def held_back(data: bytes) -> Cut:
        if MARKED in data or MARKED.hex().encode() in data:
            under_way.set()
            assert may_arrive.wait(120)
        return "no"

    port: int = request.getfixturevalue(FIXTURES[engine]).port
    with (
        cutting_proxy(port, held_back) as proxy,
        ThreadPoolExecutor(1) as writer,
        closing(opened(url.replace(f":{port}/", f":{proxy.port}/"), number)) as first,
    ):
        first.write([Prepare("t", "shop", [OutgoingMessage("orders", b"x")])], NOW)
        unit = writer.submit(refuse_the_unit, first)
        eventually(under_way.is_set, "a unit on its way")
        with closing(opened(url, number)) as second:
            may_arrive.set()
            unit.result()
            check_nothing_of_it(second)


def refuse_the_unit(first: SharedStore) -> None:
    with pytest.raises(StorageFailed, match="another owner") as refused:
        first.write([Commit("t"), sending("y", MARKED)], NOW)
    assert isinstance(refused.value.__cause__, Superseded)
    assert first.recover() is None


def check_nothing_of_it(second: SharedStore) -> None:
    assert stored(second) == []
    assert second.transaction("y") is None
    assert second.write([Commit("t")], NOW).results == [None]
    assert stored(second) == ["t"]


def test_an_owner_that_was_superseded_leaves_no_trace_on_redis(redis: RedisServer) -> None:
    number = new_number()
    with (
        closing(opened(redis.url, number)) as first,
        closing(opened(redis.url, number)) as second,
        closing(redis.connect()) as client,
    ):
        second.write([sending("kept")], NOW)

        def everything() -> dict[bytes, Any]:
            read = {b"hash": client.hgetall, b"zset": lambda key: client.zrange(key, 0, -1)}
            return {key: read[client.type(key)](key) for key in client.scan_iter(f"{{ts:{number}}}:*")}

        before = everything()
        assert before
        with pytest.raises(StorageFailed, match="another owner"):
            first.write([sending("late")], NOW)
        assert everything() == before


# --- two that believe --------------------------------------------------------------------------------------------


class Owner:
    """Claims the store again and again, and believes that it owns it until it is refused."""

    def __init__(self, name: str, server: SharedServer) -> None:
        self.name, self._server = name, server
        self.store: SharedStore | None = None

    def claim(self) -> None:
        self.store = SharedStore(self._server, self._server.claim(self.name).epoch, StoreSettings())

    def tries(self, *ops: Any) -> list[Any] | None:
        """The results; None if it was told that it does not own the store."""
        assert self.store is not None
        try:
            return self.store.write(ops, NOW).results
        except StorageFailed as error:
            if isinstance(error.__cause__, Superseded):
                return None
            raise


class Told(Struct):
    """What two owners were told, and so told others."""

    sent: set[str] = field(default_factory=set)
    outcomes: dict[str, list[str]] = field(default_factory=dict)  # as they were told of each transaction
    refused: int = 0
    by_two: int = 0  # rounds after a takeover in which both were told that they wrote
    by_none: int = 0

    def note(self, owner: Owner, gid: str, outcome: str, results: list[Any] | None) -> None:
        if results is None:
            self.refused += 1
            return
        decided, sent = results
        assert getattr(sent, "error", None) is None, sent
        self.sent.add(f"{gid}-{owner.name}")
        if decided is None:
            self.outcomes.setdefault(gid, []).append(outcome)

    def faults(self, store: SharedStore) -> set[str]:
        """What is wrong with it, by what the store has."""
        there = Counter(stored(store))
        once = [gid for gid, outcomes in self.outcomes.items() if len(outcomes) == 1]
        committed = {gid for gid in once if self.outcomes[gid] == ["committed"]}
        states = {gid: found.state for gid in once if (found := store.transaction(gid))}
        found = {
            "two wrote after a takeover": self.by_two,
            "nobody wrote": self.by_none,
            "an outcome that was not told once": len(once) != len(self.outcomes),
            "lost": (self.sent | committed) - set(there),
            "ghosts": set(there) - (self.sent | committed),
            "there twice": max(there.values()) > 1,
            "another outcome than told": states != {gid: self.outcomes[gid][0] for gid in once},
        }
        return {name for name, wrong in found.items() if wrong}


def play(owners: list[Owner], rounds: int, racing: float) -> Told:
    """Of two who write at the same time, one claims the store: before that, or, as often as `racing` says, just then.
    It decides a transaction that the other has prepared as the owner, and now decides in the other way."""
    told, chance = Told(), random.Random(rounds)
    owners[1].claim()
    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        for turn in range(rounds):
            claiming, believing = owners[turn % 2], owners[1 - turn % 2]
            gid, races = f"t{turn:04d}", chance.random() < racing
            assert believing.tries(Prepare(gid, "shop", [OutgoingMessage("orders", b"x")])) is not None
            told.outcomes[gid] = []
            if not races:
                claiming.claim()

            def decide(owner: Owner, outcome: str, claims: bool, gid: str = gid) -> bool:
                together.wait()
                if claims:
                    owner.claim()
                op = Commit(gid) if outcome == "committed" else Rollback(gid)
                results = owner.tries(op, sending(f"{gid}-{owner.name}"))
                told.note(owner, gid, outcome, results)
                return results is not None

            outcomes = chance.sample(["committed", "rolled_back"], 2)
            one = threads.submit(decide, claiming, outcomes[0], races)
            other = threads.submit(decide, believing, outcomes[1], False)
            told.by_none += not one.result()
            told.by_two += other.result() and not races
    return told


@contextmanager
def two_owners(url: str, number: int, fenced: bool = True) -> Iterator[list[Owner]]:
    opened(url, number).close()
    with closing(server_at(url, number)) as first, closing(server_at(url, number)) as second:
        servers = [first, second] if fenced else [Unfenced(first), Unfenced(second)]
        yield [Owner(name, server) for name, server in zip("ab", servers, strict=True)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [30, pytest.param(1_000, marks=pytest.mark.full)])
def test_of_two_who_believe_to_own_a_store_one_is_right(url: str, rounds: int) -> None:
    number = new_number()
    with two_owners(url, number) as owners:
        told = play(owners, rounds, racing=0.5)
    with closing(opened(url, number)) as store:
        assert told.faults(store) == set()
    assert told.refused >= rounds // 4
    assert len(told.sent) + told.refused == 2 * rounds


class Unfenced:
    """A server that carries out what it is given, whoever it is from."""

    def __init__(self, server: SharedServer) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def apply(self, _epoch: int, _unit: int, changes: Changes) -> bool:
        done = False
        while not done:  # the other may have written in between
            fence = self._server.fence()
            assert fence is not None
            done = self._server.apply(fence.epoch, fence.unit, changes)
        return True


def test_it_is_noticed_if_the_fence_is_not_asked(url: str) -> None:
    number = new_number()
    with two_owners(url, number, fenced=False) as owners:
        told = play(owners, 20, racing=0.0)
    with closing(opened(url, number)) as store:
        assert told.faults(store) >= {"two wrote after a takeover", "an outcome that was not told once", "lost"}
