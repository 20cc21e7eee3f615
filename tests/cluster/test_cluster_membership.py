"""Several members over one registry: they agree, whoever comes, goes, dies, sleeps, or loses an answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tallystick.broker.cluster.membership import LEASE_MS, TICK_MS, Membership, Todo
from tallystick.core.errors import ConfigError
from tallystick.store.shared.memory import MemoryCluster
from tallystick.store.shared.registry import Member
from tallystick.store.shared.server import Fence

STORES = 7


class Party:
    """A member with its own clock, which does at once all that a look tells it to do."""

    def __init__(self, name: str, registry: MemoryCluster, address: str = "") -> None:
        self.membership = Membership(Member(name, name, f"http://{address or name}"))
        self.registry = registry
        self.monotonic = sum(map(ord, name)) * 1_000  # nobody's clock has begun when another's has

    @property
    def held(self) -> dict[int, int]:
        return self.membership.held

    def tick(self, ms: int = TICK_MS, *, loses_answers: bool = False) -> Todo:
        self.monotonic += ms
        seen = self.registry.look(self.membership.beat())
        todo = self.membership.saw(seen, self.monotonic, self.monotonic)
        for number in todo.lost:
            self.membership.gone(number)
        for holding in todo.take:
            epoch = self.registry.claim(holding.number, holding.epoch, self.membership.me.id)
            if epoch is not None and not loses_answers:
                self.membership.won(holding.number, epoch)
        for holding in todo.give if self.membership.me.leaving else todo.give[:1]:
            self.registry.release(holding.number, holding.epoch)
            self.membership.gone(holding.number)
        for gone in todo.forget:
            self.registry.forget(gone)
        return todo


class Parties:
    def __init__(self, *names: str, stores: int = STORES) -> None:
        self.registry = MemoryCluster(stores)
        self.parties = {name: Party(name, self.registry) for name in names}

    def __getitem__(self, name: str) -> Party:
        return self.parties[name]

    def tick(self, times: int = 1) -> list[Todo]:
        return [party.tick() for _ in range(times) for party in self.parties.values()]

    def settle(self) -> None:
        """Long enough for every death to be noticed and every share to be handed over, one at a time."""
        self.tick(LEASE_MS // TICK_MS + 2 * STORES + 2)

    def owners(self) -> dict[int, str]:
        seen = self.registry.look(Member("looker", "", "", leaving=True))
        self.registry.forget("looker")
        return {holding.number: holding.owner for holding in seen.holdings}

    def assert_even(self) -> None:
        owners = self.owners()
        for number, owner in owners.items():
            assert number in self[owner].held
        assert sum(len(party.held) for party in self.parties.values()) == len(owners)  # and nobody believes in more
        shares = [len(party.held) for party in self.parties.values() if not party.membership.me.leaving]
        assert max(shares) - min(shares) <= 1


def test_the_first_takes_all_and_the_next_get_their_share() -> None:
    world = Parties("a")
    world.tick()
    assert len(world["a"].held) == STORES
    world.parties["b"] = Party("b", world.registry)
    world.settle()
    world.assert_even()
    world.parties["c"] = Party("c", world.registry)
    world.settle()
    world.assert_even()


def test_when_nobody_comes_or_goes_nothing_moves() -> None:
    world = Parties("a", "b", "c")
    world.settle()
    epochs = [party.held.copy() for party in world.parties.values()]
    assert all(todo == Todo() for todo in world.tick(1_000))
    assert [party.held for party in world.parties.values()] == epochs


def test_the_stores_of_one_who_died_are_taken_after_a_lease_and_not_before() -> None:
    world = Parties("a", "b", "c")
    world.settle()
    dead = world.parties.pop("a")
    world.tick(LEASE_MS // TICK_MS - 1)
    assert Counter(world.owners().values())["a"] == len(dead.held)
    world.tick(2)
    assert Counter(world.owners().values())["a"] == 0
    world.assert_even()


def test_whoever_joins_does_not_leave_stores_to_the_dead() -> None:
    """It cannot know yet that they are dead, and their turn would never come."""
    world = Parties("a")
    for name in ("dead", "gone"):
        world.registry.look(Member(name, name, f"http://{name}", beat=7))
    world.settle()  # "a" knows that they are dead
    world.parties["b"] = Party("b", world.registry)
    world.tick(2 * (STORES // 2) + 2)  # each store is given and taken at once
    world.assert_even()


def test_whoever_comes_back_to_its_address_need_not_wait_for_its_own_lease() -> None:
    world = Parties("a", "b")
    world.settle()
    dead = world.parties.pop("b")
    world.parties["c"] = Party("c", world.registry, address="b")
    world["c"].tick()
    assert world["c"].membership.alive("b")  # it may be an error in the settings
    for _ in range(LEASE_MS // 3 // TICK_MS):
        world["c"].tick()
    assert not world["c"].membership.alive("b")
    assert world["c"].held.keys() == dead.held.keys()
    assert world["c"].membership.twins() == []


def test_two_who_live_at_one_address_are_told_and_steal_nothing_from_each_other() -> None:
    world = Parties("a")
    world.parties["b"] = Party("b", world.registry, address="a")
    world.settle()
    world.assert_even()
    assert world["a"].membership.twins() == ["b"]
    assert world["b"].membership.twins() == ["a"]
    assert all(todo == Todo() for todo in world.tick(100))


def test_a_loopback_address_is_no_address_for_another_machine() -> None:
    world = Parties("a", "b")
    world.parties["c"] = Party("c", world.registry, address="127.0.0.1:7440")
    world.settle()
    assert world["c"].membership.strangers() == ["a", "b"]
    assert world["a"].membership.strangers() == []


def test_one_who_slept_through_its_death_learns_of_it_with_its_first_look() -> None:
    world = Parties("a", "b")
    world.settle()
    sleeper = world.parties.pop("a")
    held = set(sleeper.held)
    world.settle()
    assert set(sleeper.tick(60_000).lost) == held
    assert not held & set(sleeper.held)


def test_what_a_failover_took_back_is_lost_whoever_has_it_now() -> None:
    """The engine is back at an epoch before ours, and then at ours, but in somebody else's name."""
    world = Parties("a")
    world.tick()
    fences = [shard.fence for shard in world.registry.shards]
    world.registry.shards[0].fence = Fence(0, 0, "")
    world.registry.shards[1].fence = msgspec.structs.replace(fences[1], owner="b")
    assert world["a"].tick().lost == (0, 1)


def test_one_who_leaves_has_nothing_after_its_next_look_and_the_others_all_after_theirs() -> None:
    world = Parties("a", "b", "c")
    world.settle()
    world["a"].membership.leave()
    world.tick(2)
    assert world["a"].held == {}
    world.parties.pop("a")
    world.assert_even()


def test_the_last_one_to_leave_leaves_nobody_as_the_owner() -> None:
    world = Parties("a")
    world.tick()
    world["a"].membership.leave()
    world.tick(3)
    assert set(world.owners().values()) == {""}


def test_a_claim_whose_answer_was_lost_is_made_again() -> None:
    world = Parties("a")
    world["a"].tick(loses_answers=True)
    assert world["a"].held == {}
    assert set(world.owners().values()) == {"a"}
    world.tick()
    assert world["a"].held == dict.fromkeys(range(STORES), 2)


def test_a_claim_whose_answer_was_lost_is_given_up_by_one_who_leaves() -> None:
    world = Parties("a")
    world["a"].tick(loses_answers=True)
    world["a"].membership.leave()
    world.tick()
    assert set(world.owners().values()) == {""}


def test_what_is_ours_by_name_only_is_not_taken_to_be_given_away() -> None:
    world = Parties("a", "b")
    for _ in range(2):  # "b" is seen to beat
        world["a"].tick(loses_answers=True)
        world["b"].tick()
    todo = world["a"].tick()
    assert todo.give
    assert not set(todo.give) & set(todo.take)
    world.settle()
    world.assert_even()


def test_a_cluster_has_as_many_stores_as_it_was_made_with() -> None:
    registry = MemoryCluster(3)
    registry.make(3)
    with pytest.raises(ConfigError, match="made with 3 stores"):
        registry.make(4)


class Histories(RuleBasedStateMachine):
    """Members come, go, die, pause and lose answers in any order; then they are left alone."""

    @initialize()
    def begin(self) -> None:
        self.world = Parties("m0")
        self.asleep: dict[str, Party] = {}
        self.born = 1
        self.epochs = dict.fromkeys(range(STORES), 0)

    def _one(self, data: st.DataObject, among: dict[str, Party]) -> str:
        return data.draw(st.sampled_from(sorted(among)))

    @precondition(lambda self: len(self.world.parties) + len(self.asleep) < 5)
    @rule()
    def joins(self) -> None:
        self.world.parties[f"m{self.born}"] = Party(f"m{self.born}", self.world.registry)
        self.born += 1

    @precondition(lambda self: len(self.world.parties) > 1)
    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        del self.world.parties[self._one(data, self.world.parties)]

    @precondition(lambda self: len(self.world.parties) > 1)
    @rule(data=st.data())
    def sleeps(self, data: st.DataObject) -> None:
        name = self._one(data, self.world.parties)
        self.asleep[name] = self.world.parties.pop(name)

    @precondition(lambda self: self.asleep)
    @rule(data=st.data(), ms=st.integers(0, 3 * LEASE_MS))
    def wakes(self, data: st.DataObject, ms: int) -> None:
        name = self._one(data, self.asleep)
        self.world.parties[name] = self.asleep.pop(name)
        self.world[name].monotonic += ms

    @precondition(lambda self: sum(not p.membership.me.leaving for p in self.world.parties.values()) > 1)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        self.world[self._one(data, self.world.parties)].membership.leave()

    @rule(data=st.data(), ms=st.integers(1, LEASE_MS), loses=st.booleans())
    def ticks(self, data: st.DataObject, ms: int, loses: bool) -> None:
        self.world[self._one(data, self.world.parties)].tick(ms, loses_answers=loses)

    @rule(times=st.integers(1, 15))
    def time_passes(self, times: int) -> None:
        self.world.tick(times)

    @invariant()
    def nobody_holds_what_another_holds_under_the_same_epoch(self) -> None:
        everybody = [*self.world.parties.values(), *self.asleep.values()]
        held = [item for party in everybody for item in party.held.items()]
        assert len(held) == len(set(held))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            staying = {n: p for n, p in self.world.parties.items() if not p.membership.me.leaving}
            self.world.parties.update({} if staying else {"last": Party("last", self.world.registry)})
            self.world.settle()
            self.world.settle()
            self.world.assert_even()


TestHistories: Any = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=30, suppress_health_check=list(HealthCheck))


@given(st.integers(1, 6), st.integers(1, 16))
def test_all_come_to_an_even_rest_from_a_start_at_once(members: int, stores: int) -> None:
    world = Parties(*(f"m{number}" for number in range(members)), stores=stores)
    world.settle()
    world.tick(2 * stores)
    world.assert_even()
