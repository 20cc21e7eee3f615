"""Since when each store has its owner, and how long it had none: as a watcher has seen it."""

from __future__ import annotations

from tallystick.broker.cluster.succession import Reign, Succession
from tallystick.store.shared.registry import Holding


class Watcher:
    def __init__(self) -> None:
        self.succession = Succession()
        self.beats: dict[str, int] = {}  # when the last one of each was seen

    def look(self, at: int, owner: str, epoch: int, *alive: str) -> Reign:
        self.beats.update(dict.fromkeys(alive, at))
        self.succession.saw([Holding(0, "store", epoch, owner)], at, self.beats.get)
        return self.succession.reigns[0]


def test_of_the_first_owner_only_what_was_seen_is_known() -> None:
    watcher = Watcher()
    assert watcher.look(100, "a", 7, "a") == Reign("a", 7, 100, None)
    assert watcher.look(900, "a", 7, "a") == Reign("a", 7, 100, None)


def test_a_store_was_without_owner_since_the_last_beat_of_a_dead_one() -> None:
    watcher = Watcher()
    watcher.look(1_000, "a", 7, "a", "b")
    watcher.look(4_000, "a", 7, "b")
    assert watcher.look(4_250, "b", 9, "b") == Reign("b", 9, 4_250, 3_250)


def test_a_store_was_without_owner_since_it_was_released() -> None:
    watcher = Watcher()
    watcher.look(1_000, "a", 7, "a", "b")
    assert watcher.look(1_250, "", 7, "a", "b") == Reign("", 7, 1_250, None)
    assert watcher.look(1_500, "b", 8, "a", "b") == Reign("b", 8, 1_500, 250)


def test_a_store_that_changed_hands_between_two_looks_was_never_without() -> None:
    watcher = Watcher()
    watcher.look(1_000, "a", 7, "a", "b")
    assert watcher.look(1_250, "b", 8, "a", "b") == Reign("b", 8, 1_250, 0)
    assert watcher.look(1_500, "b", 9, "a", "b") == Reign("b", 9, 1_500, 0), "claimed again by the same"
