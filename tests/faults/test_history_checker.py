"""The checker of histories is trusted because it finds each kind of mistake, and nothing where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from history import History, violations


def good() -> History:
    """One of each: told ok, told failed, unknown and committed, unknown and not; and messages without a transaction."""
    return History(
        tried={"ok", "failed", "unknown-in", "unknown-out"},
        ok={"ok"},
        failed={"failed"},
        rows=Counter(["ok", "unknown-in"]),
        effects=Counter(["ok", "unknown-in", "sent", "sent-unconfirmed"]),
        sent={"sent", "sent-unconfirmed", "sent-lost"},
        confirmed={"sent"},
        outcomes={"gid-1": {"committed"}, "gid-2": {"rolled_back"}},
    )


def test_a_good_history_has_no_violation() -> None:
    assert violations(good()) == []


def _with(**changes: object) -> Callable[[], History]:
    return lambda: replace(good(), **changes)


BROKEN = {
    "an effect is lost": (_with(effects=Counter(["unknown-in", "sent"])), {("I1", "ok")}),
    "an unknown one is committed, but its effect is lost": (
        _with(effects=Counter(["ok", "sent"])),
        {("I1", "unknown-in")},
    ),
    "an effect is doubled": (_with(effects=good().effects + Counter(["ok"])), {("I3", "ok")}),
    "an effect of what was rolled back": (_with(effects=good().effects + Counter(["failed"])), {("I2", "failed")}),
    "an effect of an unknown one that is not committed": (
        _with(effects=good().effects + Counter(["unknown-out"])),
        {("I2", "unknown-out")},
    ),
    "an effect of what nobody tried": (_with(effects=good().effects + Counter(["ghost"])), {("I2", "ghost")}),
    "a loss and a double that would hide each other in a count": (
        _with(effects=Counter(["ok", "ok", "sent", "sent-unconfirmed"])),
        {("I1", "unknown-in"), ("I3", "ok")},
    ),
    "a change is doubled": (_with(rows=good().rows + Counter(["ok"])), {("I3", "ok")}),
    "a gid has two outcomes": (_with(outcomes={"gid-1": {"committed", "rolled_back"}}), {("I4", "gid-1")}),
    "told failed, but committed": (
        _with(rows=good().rows + Counter(["failed"]), effects=good().effects + Counter(["failed"])),
        {("I4", "failed")},
    ),
    "told ok, but gone": (
        _with(rows=Counter(["unknown-in"]), effects=Counter(["unknown-in", "sent"])),
        {("I5", "ok")},
    ),
    "a confirmed message is lost": (_with(effects=Counter(["ok", "unknown-in"])), {("I5", "sent")}),
    "something is left undecided": (_with(pending={"gid-3"}), {("I6", "gid-3")}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_checker_finds_it_when(case: str) -> None:
    make, expected = BROKEN[case]
    assert {(one.invariant, one.name) for one in violations(make())} == expected


def test_an_outcome_of_what_nobody_tried_is_a_mistake_of_the_test_itself() -> None:
    with pytest.raises(AssertionError, match="nobody tried"):
        violations(replace(good(), ok={"ok", "never"}))
