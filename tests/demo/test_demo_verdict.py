"""The demo's proof: it accepts a right run, and each kind of wrong one makes it fail with its own line."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.demo.verdict import Judgement, Line, RunEvidence, passed
from tallystick.demo.verdict import judge as judge_with

RIGHT = RunEvidence(
    wished={1, 2, 3, 4},
    debited=[(1, 10), (2, 20), (3, 30)],
    refused={4},
    logged=[(2, 20), (1, 10), (3, 30)],
    credited=[(3, 30), (1, 10), (2, 20)],
    debited_gids={"a", "b", "c"},
    committed_gids={"a", "b", "c"},
    money_before=100,
    money_at_a=40,
    money_at_b=60,
    unresolved=0,
)


SKIPPED = Judgement(None, "no Spark here")
KINDS = ("lost", "duplicated", "ghost", "contradictory", "in_doubt", "late")
CLEAN: dict[str, tuple[int, list[str]]] = {kind: (0, []) for kind in KINDS}


def judge(evidence: RunEvidence) -> list[Line]:
    """As it is done where Spark cannot run."""
    return judge_with(evidence, SKIPPED)


def broken(evidence: RunEvidence) -> set[str]:
    return {line.claim for line in judge(evidence) if not line.holds}


def test_a_right_run_passes() -> None:
    assert passed(judge(RIGHT))


@pytest.mark.parametrize(
    ("wrong", "claims"),
    [
        ({"credited": [(1, 10), (2, 20)]}, {"every committed transfer was credited"}),
        ({"credited": [*RIGHT.credited, (4, 5)]}, {"no other was credited"}),
        ({"credited": [*RIGHT.credited, (1, 10)]}, {"none was credited twice"}),
        # Lost and doubled at once: every count is right, only the sets are not.
        (
            {"credited": [(1, 10), (1, 10), (3, 30)]},
            {"every committed transfer was credited", "none was credited twice"},
        ),
        ({"credited": [(1, 11), (2, 19), (3, 30)]}, {"each was credited with its own amount"}),
        ({"logged": [(1, 10), (2, 20)]}, {"every committed transfer is in the log"}),
        ({"logged": [*RIGHT.logged, (4, 5)]}, {"the log has no other"}),
        ({"logged": [*RIGHT.logged, (1, 10)]}, {"the log has none twice"}),
        ({"wished": {1, 2, 3, 4, 5}}, {"every transfer was tried"}),
        ({"refused": {3, 4}}, {"each was debited or refused, not both"}),
        ({"debited": [*RIGHT.debited, (1, 10)]}, {"each was debited at most once"}),
        ({"committed_gids": {"a", "b"}}, {"the broker's outcomes are bank A's own"}),
        ({"committed_gids": {"a", "b", "c", "d"}}, {"the broker's outcomes are bank A's own"}),
        ({"money_at_b": 61}, {"the money adds up"}),
        ({"unresolved": 1}, {"no transaction is left without an outcome"}),
        ({"crashed": 1}, {"no process ended by itself"}),
    ],
)
def test_each_kind_of_wrong_run_fails_with_its_own_claim(wrong: dict[str, Any], claims: set[str]) -> None:
    evidence = RIGHT._replace(**wrong)
    assert broken(evidence) == claims
    assert not passed(judge(evidence))


def test_a_run_in_which_nothing_happened_proves_nothing() -> None:
    empty = RunEvidence(set(), [], set(), [], [], set(), set(), 0, 0, 0, 0)
    assert broken(empty) == {"something was there to be shown"}


def test_a_failed_line_names_some_ids() -> None:
    lost = RIGHT._replace(
        wished=set(range(100)), debited=[(number, 1) for number in range(1, 100)], refused={0}, logged=[], credited=[]
    )
    details = {line.claim: line.detail for line in judge(lost)}
    assert details["every committed transfer was credited"] == "99 lost: 1, 2, 3, 4, 5, ..."


def test_reconcile_is_the_judge_of_the_sets_where_it_ran() -> None:
    assert passed(judge_with(RIGHT, Judgement(CLEAN, "")))
    lines = judge_with(RIGHT, Judgement({**CLEAN, "lost": (7, ["a/0", "b/0", "c/0", "d/0", "e/0"])}, ""))
    assert [line for line in lines if not line.holds] == [
        Line("reconcile: nothing is lost", False, "7 found: a/0, b/0, c/0, d/0, e/0, ...")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_that_reconcile_finds_fails_the_proof(kind: str) -> None:
    assert not passed(judge_with(RIGHT, Judgement({**CLEAN, kind: (1, ["a/0"])}, "")))


def test_the_business_is_judged_beside_reconcile() -> None:
    """Reconcile knows messages; that the money adds up only the banks can tell."""
    lines = judge_with(RIGHT._replace(money_at_b=61, crashed=1), Judgement(CLEAN, ""))
    assert {line.claim for line in lines if not line.holds} == {"the money adds up", "no process ended by itself"}
