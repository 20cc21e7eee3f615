"""Stores are spread evenly, move only when they must, and come to rest whatever happens to the members."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tallystick.broker.cluster.spread import spread
from tallystick.store.shared.registry import Holding

NAMES = [f"b{number}" for number in range(6)]


def holdings(*owners: str) -> list[Holding]:
    return [Holding(number, f"{number:08x}", 1, owner) for number, owner in enumerate(owners)]


class World:
    """Stores with owners, and members that each take a turn with what they want."""

    def __init__(self, owners: list[str], alive: set[str]) -> None:
        self.stores = holdings(*owners)
        self.alive, self.leaving = set(alive), set[str]()
        self.moves = 0

    def set_owner(self, number: int, owner: str) -> None:
        store = self.stores[number]
        self.stores[number] = Holding(number, store.id, store.epoch + 1, owner)
        self.moves += 1

    def turn(self, member: str) -> bool:
        """Whether it had anything to do. It takes all that is its to take, and gives one away."""
        wanted = spread(member, self.stores, self.alive, self.leaving)
        for holding in wanted.take:
            self.set_owner(holding.number, member)
        for holding in wanted.give[:1]:
            self.set_owner(holding.number, "")
        return bool(wanted.take or wanted.give)

    def settle(self, order: list[str] | None = None) -> None:
        for _ in range(len(self.stores) + 3):
            if sum(self.turn(member) for member in order or sorted(self.alive)) == 0:
                return
        raise AssertionError(f"no rest: {self.stores}")

    def owned(self) -> Counter[str]:
        return Counter(store.owner for store in self.stores)

    def assert_even(self) -> None:
        owned = self.owned()
        shares = [owned[member] for member in self.alive - self.leaving]
        assert sum(shares) == len(self.stores)
        assert max(shares) - min(shares) <= 1


alive_sets = st.sets(st.sampled_from(NAMES), min_size=1)
owner_lists = st.lists(st.sampled_from([*NAMES, "", "gone"]), min_size=1, max_size=20)


@given(owner_lists, alive_sets)
def test_from_wherever_it_begins_it_comes_to_an_even_rest(owners: list[str], alive: set[str]) -> None:
    world = World(owners, alive)
    world.settle()
    world.assert_even()


@given(owner_lists, alive_sets)
def test_at_rest_nothing_moves(owners: list[str], alive: set[str]) -> None:
    world = World(owners, alive)
    world.settle()
    moves = world.moves
    assert not any(world.turn(member) for member in sorted(alive))
    assert world.moves == moves


@given(owner_lists, alive_sets, st.data())
def test_the_order_of_turns_decides_nothing_about_the_rest(
    owners: list[str], alive: set[str], data: st.DataObject
) -> None:
    world = World(owners, alive)
    world.settle(data.draw(st.permutations(sorted(alive))))
    world.assert_even()


@given(st.integers(1, 20), alive_sets, st.data())
def test_only_the_stores_of_the_dead_move(count: int, alive: set[str], data: st.DataObject) -> None:
    world = World([""] * count, alive | {"survivor"})
    world.settle()
    before = [store.owner for store in world.stores]
    dead = data.draw(st.sampled_from(sorted(alive)))
    world.alive.remove(dead)
    world.settle()
    world.assert_even()
    assert all(store.owner == owner for store, owner in zip(world.stores, before, strict=True) if owner != dead)


@given(st.integers(1, 20), alive_sets)
def test_a_newcomer_gets_its_share_and_nobody_else_gets_anything(count: int, alive: set[str]) -> None:
    world = World([""] * count, alive)
    world.settle()
    before = [store.owner for store in world.stores]
    world.alive.add("newcomer")
    world.settle()
    world.assert_even()
    moved = [store.owner for store, owner in zip(world.stores, before, strict=True) if store.owner != owner]
    assert moved == ["newcomer"] * (count // len(world.alive))


@given(st.integers(1, 20), alive_sets)
def test_one_who_leaves_gives_everything_and_takes_nothing(count: int, alive: set[str]) -> None:
    world = World([""] * count, alive | {"leaver"})
    world.settle()
    world.leaving.add("leaver")
    world.settle()
    assert world.owned()["leaver"] == 0
    world.assert_even()


@given(st.lists(st.tuples(st.sampled_from(["joins", "dies", "leaves", "turn"]), st.sampled_from(NAMES)), max_size=60))
def test_it_comes_to_rest_after_any_history(history: list[tuple[str, str]]) -> None:
    world = World([""] * 7, {"first"})
    for event, name in history:
        if event == "joins":
            world.alive.add(name)
            world.leaving.discard(name)
        elif event == "dies":
            world.alive.discard(name)
        elif event == "leaves":
            world.leaving.add(name)
        elif name in world.alive:
            world.turn(name)
    world.settle()
    world.assert_even()


def test_everybody_leaving_leaves_all_without_an_owner() -> None:
    world = World(["a", "b", "a"], {"a", "b"})
    world.leaving = {"a", "b"}
    world.settle()
    assert world.owned() == {"": 3}


def test_two_who_see_the_same_never_want_the_same_store() -> None:
    stores = holdings(*[""] * 16)
    wanted = [spread(member, stores, {"a", "b", "c"}, set()).take for member in ("a", "b", "c")]
    numbers = [holding.number for take in wanted for holding in take]
    assert sorted(numbers) == list(range(16))
    assert sorted(map(len, wanted)) == [5, 5, 6]
