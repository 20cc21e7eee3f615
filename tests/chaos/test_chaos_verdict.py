"""The monkey's verdict: it accepts a right run; each kind of damage makes it fail with its own line, in both forms."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.chaos.ledgers import Effect
from tallystick.chaos.modes import MODES, PROMISES, Promise
from tallystick.chaos.verdict import Findings, owed, settled, standing
from tallystick.demo.verdict import Line, passed

EXACTLY = PROMISES["check-back"]
A, B, C, D = (Effect(name, f"gid-{name}/0") for name in "abcd")
RIGHT = Findings(
    committed={"a", "b", "c"},
    effects=[C, A, B],
    ok={"a", "b"},
    rolled_back={"d"},
    logged=["b", "a", "c"],
    outcomes={"1": frozenset({"committed"}), "2": frozenset({"rolled_back"})},
)
UNDER_WAY = RIGHT._replace(effects=[A], unconfirmed={"b", "c"}, logged=None)


def broken(lines: list[Line]) -> set[str]:
    return {line.claim for line in lines if not line.holds}


def look(findings: Findings, promise: Promise = EXACTLY) -> list[Line]:
    """At the end of a round, with nobody to wait for."""
    return standing(findings, promise, owed(findings, promise) - {effect.name for effect in findings.effects})


@pytest.mark.parametrize("mode", MODES)
def test_a_right_run_passes(mode: Any) -> None:
    assert passed(settled(RIGHT, PROMISES[mode]))
    assert passed(look(UNDER_WAY, PROMISES[mode]))


# What is wrong, and the claims that fail for it: in both forms.
DAMAGE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "ghost": ({"effects": [A, B, C, Effect("x", "gid-x/0")]}, {"nothing else has been consumed"}),
    "rolled back": (
        {"effects": [A, B, C, D]},
        {"nothing else has been consumed", "nothing of what was rolled back"},
    ),
    "duplicated": ({"effects": [A, B, C, Effect("a", "gid-y/0")]}, {"none has been consumed twice"}),
    "duplicated on the word of one message": (
        {"effects": [A, B, C, A]},
        {"none has been consumed twice", "no message of a log has had its effect twice"},
    ),
    "effect without its mark": (
        {"effects": [A, B, C._replace(marked=False)]},
        {"every effect has its mark beside it"},
    ),
    "contradictory outcome": (
        {"outcomes": {"1": frozenset({"committed", "rolled_back"})}},
        {"every transaction has one outcome"},
    ),
    "told that it is rolled back": ({"rolled_back": {"c", "d"}}, {"every transaction has one outcome"}),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_kind_of_damage_is_found_when_all_has_settled(kind: str) -> None:
    wrong, claims = DAMAGE[kind]
    assert broken(settled(RIGHT._replace(**wrong), EXACTLY)) >= claims
    assert not broken(settled(RIGHT._replace(**wrong), EXACTLY)) - claims - {"nothing of what was rolled back"}


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_kind_of_damage_is_found_while_the_load_goes_on(kind: str) -> None:
    wrong, claims = DAMAGE[kind]
    assert broken(look(UNDER_WAY._replace(**wrong))) >= claims


@pytest.mark.parametrize(
    ("wrong", "claims"),
    [
        ({"effects": [A, B]}, {"what is committed has been consumed"}),
        # Lost and doubled at once: every count is right, only the sets are not.
        (
            {"effects": [A, Effect("a", "gid-y/0"), B]},
            {"what is committed has been consumed", "none has been consumed twice"},
        ),
        ({"logged": ["a", "b"]}, {"what is committed is in the brokers' logs"}),
        ({"logged": ["a", "b", "c", "x"]}, {"nothing else is in them"}),
        ({"logged": ["a", "b", "c", "a"]}, {"none is in them twice"}),
        ({"ok": {"a", "e"}}, {"what a producer was told is done is in its database"}),
        ({"unresolved": {"3"}}, {"nothing is left without an outcome"}),
        ({"unsettled": 1}, {"nothing is left unsettled"}),
        ({"crashed": 1}, {"no process ended by itself"}),
    ],
)
def test_what_is_wrong_when_all_has_settled(wrong: dict[str, Any], claims: set[str]) -> None:
    assert broken(settled(RIGHT._replace(**wrong), EXACTLY)) == claims


def test_while_the_load_goes_on_only_the_unconfirmed_may_be_missing() -> None:
    assert broken(look(UNDER_WAY._replace(unconfirmed={"b"}))) == {"what is confirmed has been consumed"}
    assert broken(look(UNDER_WAY._replace(effects=[A, B]))) == set()


def test_a_failed_line_names_what_is_lost() -> None:
    (line, *_) = settled(RIGHT._replace(effects=[A]), EXACTLY)
    assert line == Line("what is committed has been consumed", False, "2 lost: b, c")


def test_a_run_in_which_nothing_happened_proves_nothing() -> None:
    assert broken(settled(Findings(set(), []), EXACTLY)) == {"something was there to be shown"}


LOST = RIGHT._replace(effects=[A], logged=["a"])
DOUBLED = RIGHT._replace(effects=[A, B, C, Effect("a", "gid-y/0")], logged=["a", "b", "c", "a"])


def test_at_most_once_may_lose_and_no_more() -> None:
    promise = PROMISES["level-0"]
    assert passed(settled(LOST, promise))
    assert settled(LOST, promise)[0].detail == "2 lost"
    assert "none has been consumed twice" in broken(settled(DOUBLED, promise))
    assert "nothing else has been consumed" in broken(settled(RIGHT._replace(effects=[A, D]), promise))


def test_at_least_once_may_double_and_no_more() -> None:
    promise = PROMISES["level-1"]
    assert passed(settled(DOUBLED, promise))
    assert "what is committed has been consumed" in broken(settled(LOST, promise))
    # The copies are messages of their own; one of them may not have two effects.
    twice = RIGHT._replace(effects=[A, B, C, A])
    assert broken(settled(twice, promise)) == {"no message of a log has had its effect twice"}


@pytest.mark.parametrize("mode", ["level-2", "check-back", "outbox", "consumer-dedup"])
def test_exactly_once_may_do_neither(mode: Any) -> None:
    assert "what is committed has been consumed" in broken(settled(LOST, PROMISES[mode]))
    assert "none has been consumed twice" in broken(settled(DOUBLED, PROMISES[mode]))
