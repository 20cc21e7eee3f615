"""Those who change one thing at once do it one after the other."""

from __future__ import annotations

from tallystick.broker.turns import MOST_KEPT, TURN_SECONDS, Turns


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_turn_is_one_holder_s_until_it_is_given_back() -> None:
    turns = Turns(Seconds())
    assert turns.take("topic/a", "one")
    assert turns.take("topic/b", "two")
    assert not turns.take("topic/a", "two")
    assert turns.take("topic/a", "one"), "asked again, as after a lost answer"
    turns.give_back("topic/a", "two")
    assert not turns.take("topic/a", "two"), "given back by somebody who did not hold it"
    turns.give_back("topic/a", "one")
    assert turns.take("topic/a", "two")


def test_the_turn_of_one_who_died_ends_by_itself() -> None:
    clock = Seconds()
    turns = Turns(clock)
    assert turns.take("topic/a", "dead")
    clock.now = TURN_SECONDS - 1
    assert not turns.take("topic/a", "next")
    clock.now = TURN_SECONDS
    assert turns.take("topic/a", "next")
    turns.give_back("topic/a", "dead")
    assert not turns.take("topic/a", "third"), "given back by somebody whose turn is over"


def test_turns_that_nobody_gave_back_are_not_kept_for_ever() -> None:
    clock = Seconds()
    turns = Turns(clock)
    for number in range(MOST_KEPT):
        assert turns.take(f"topic/{number}", "dead")
    clock.now = TURN_SECONDS
    assert turns.take("topic/new", "one")
    assert len(turns._held) == 1
