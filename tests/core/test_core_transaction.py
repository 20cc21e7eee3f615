"""The rules of a transaction's life, without a store: one outcome for ever, and what follows an unanswered check."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.backoff import Backoff
from tallystick.core.errors import AlreadyResolved, Conflict, DifferentContent, OutcomeConflict
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Check, Outcome, Prepare
from tallystick.core.transaction import (
    CheckDefaults,
    CheckState,
    Prepared,
    Resolved,
    accept_outcome_again,
    accept_prepare_again,
    after_unanswered,
)

OUTCOMES: tuple[Outcome, ...] = ("committed", "rolled_back")
NOW = 1_700_000_000_000
BACKOFF = Backoff(first_ms=2_000, cap_ms=30_000)


def message(value: bytes = b"v", topic: str = "orders", **rest: Any) -> OutgoingMessage:
    return OutgoingMessage(topic, value, **rest)


def prepared(
    max_checks: int = 3, on_exhausted: str = "park", messages: list[OutgoingMessage] | None = None, source: str = ""
) -> Prepared:
    kept = [message()] if messages is None else messages
    return Prepared("shop", "m1", 1, "group", "", source, NOW, max_checks, on_exhausted, NOW - 10_000, kept)


def resolved(outcome: Outcome) -> Resolved:
    return Resolved(outcome, "shop", NOW - 10_000, NOW, "check", 1, 2)


# --- prepared again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "again",
    [
        Prepare("g", "shop", [message()]),
        Prepare("g", "shop", [message()], member="another member"),
        Prepare("g", "shop", [message()], Check(after_ms=5, max_checks=9)),
    ],
    ids=["all the same", "another member", "other wishes for the check"],
)
def test_a_prepare_that_says_the_same_is_accepted_again(again: Prepare) -> None:
    accept_prepare_again("g", prepared(), again)


@pytest.mark.parametrize(
    "other",
    [
        Prepare("g", "another-shop", [message()]),
        Prepare("g", "shop", []),
        Prepare("g", "shop", [message(), message()]),
        Prepare("g", "shop", [message(b"w")]),
        Prepare("g", "shop", [message(topic="bills")]),
        Prepare("g", "shop", [message(key="k")]),
        Prepare("g", "shop", [message(headers={"a": "b"})]),
        Prepare("g", "shop", [message(deliver_at=NOW)]),
    ],
    ids=["group", "nothing", "more", "value", "topic", "key", "headers", "time"],
)
def test_a_prepare_with_other_content_is_refused(other: Prepare) -> None:
    with pytest.raises(DifferentContent, match="gid g "):
        accept_prepare_again("g", prepared(), other)


def test_the_order_of_messages_is_part_of_the_content() -> None:
    both = [message(b"1"), message(b"2")]
    with pytest.raises(DifferentContent):
        accept_prepare_again("g", prepared(messages=both), Prepare("g", "shop", both[::-1]))


def test_the_barrier_that_holds_the_outcome_is_part_of_the_content() -> None:
    here = prepared(source="postgresql://one:5432/shop#public/3f")
    accept_prepare_again(
        "g", here, Prepare("g", "shop", [message()], Check(source="postgresql://1.2.3.4:1/shop#public/3f"))
    )
    for elsewhere in ("postgresql://one:5432/shop#public/77", "postgresql://one:5432/shop#tenant/3f", "redis"):
        with pytest.raises(DifferentContent, match="in another database"):
            accept_prepare_again("g", here, Prepare("g", "shop", [message()], Check(source=elsewhere)))


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_nothing_is_prepared_after_an_outcome(outcome: Outcome) -> None:
    with pytest.raises(AlreadyResolved, match=outcome):
        accept_prepare_again("g", resolved(outcome), Prepare("g", "shop", [message()]))


# --- resolved again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", OUTCOMES)
@pytest.mark.parametrize("second", OUTCOMES)
def test_the_first_outcome_stands(first: Outcome, second: Outcome) -> None:
    if first == second:
        accept_outcome_again("g", resolved(first), second)
        return
    with pytest.raises(OutcomeConflict) as refused:
        accept_outcome_again("g", resolved(first), second)
    assert isinstance(refused.value, Conflict)
    assert all(word in refused.value.detail for word in ("g", first, second, "by check"))


@given(st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=12))
def test_whatever_comes_afterwards_the_outcome_is_the_first(said: list[Outcome]) -> None:
    standing = resolved(said[0])
    conflicts = 0
    for word in said:
        try:
            accept_outcome_again("g", standing, word)
        except OutcomeConflict:
            conflicts += 1
    assert standing == resolved(said[0])
    assert conflicts == sum(word != said[0] for word in said)


# --- checks that brought no outcome --------------------------------------------------------------------------------


def test_each_unanswered_check_is_counted_and_waits_longer() -> None:
    transaction, state = prepared(max_checks=6), CheckState(0, NOW)
    waits = []
    for checks in range(1, 6):
        follows = after_unanswered(state, transaction, NOW, BACKOFF, f"error {checks}", permanent=False)
        assert isinstance(follows, CheckState)
        assert (follows.checks, follows.last_error, follows.parked) == (checks, f"error {checks}", False)
        waits.append(follows.next_at - NOW)
        state = follows
    for wait, full in zip(waits, (2_000, 4_000, 8_000, 16_000, 30_000), strict=True):
        assert 0.8 * full <= wait <= full
    assert after_unanswered(state, transaction, NOW, BACKOFF, "last", permanent=False) == "park"


@pytest.mark.parametrize("wish", ["park", "rollback"])
def test_used_up_checks_lead_to_what_the_producer_chose(wish: str) -> None:
    follows = after_unanswered(CheckState(2, NOW), prepared(3, wish), NOW, BACKOFF, "e", permanent=False)
    assert follows == wish


def test_a_single_check_may_be_all_there_is() -> None:
    assert after_unanswered(CheckState(0, NOW), prepared(1), NOW, BACKOFF, "e", permanent=False) == "park"


def test_a_wish_that_nobody_knows_parks_and_never_rolls_back() -> None:
    assert after_unanswered(CheckState(9, NOW), prepared(1, "surprise"), NOW, BACKOFF, "e", permanent=False) == "park"


def test_an_error_that_asking_again_soon_cannot_mend_waits_the_longest_wait() -> None:
    follows = after_unanswered(CheckState(0, NOW), prepared(), NOW, BACKOFF, "404", permanent=True)
    assert follows == CheckState(1, NOW + BACKOFF.cap_ms, "404")


def test_a_permanent_error_still_uses_up_the_checks() -> None:
    assert after_unanswered(CheckState(2, NOW), prepared(3), NOW, BACKOFF, "404", permanent=True) == "park"


def test_the_state_before_is_left_as_it_was() -> None:
    state = CheckState(0, NOW, "before")
    after_unanswered(state, prepared(), NOW, BACKOFF, "after", permanent=False)
    assert state == CheckState(0, NOW, "before")


def test_defaults_are_those_that_are_documented() -> None:
    defaults = CheckDefaults()
    assert (defaults.after_ms, defaults.max_checks, defaults.on_exhausted) == (10_000, 15, "park")
    assert (defaults.backoff.first_ms, defaults.backoff.cap_ms) == (2_000, 30_000)
