"""The comparison itself, on traces made by hand: each kind of damage is found, and only that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tallystick.spark.jobs.reconcile.comparison import compare, counts, empty_traces
from tallystick.spark.jobs.reconcile.rules import BEGINNING, Bounds
from tallystick.spark.jobs.reconcile.traces import (
    OUTCOME_COMMITTED,
    OUTCOME_ROLLED_BACK,
    PARKED,
    PREPARED,
    SETTLED,
    STATE_COMMITTED,
    STATE_ROLLED_BACK,
    UNKNOWN,
    WAITING,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOW = 1_800_000_000_000
OLD = NOW - 600_000  # older than the grace
YOUNG = NOW - 1_000
ANCIENT = NOW - 30 * 86_400_000  # older than anything is kept
WEEK = NOW - 7 * 86_400_000

Trace = dict[str, Any]


def committed_row(at: int = OLD) -> Trace:
    return {"sequence": -1, "outcome": OUTCOME_COMMITTED, "decided_at": at}


def rolled_back_row(at: int = OLD) -> Trace:
    return {"sequence": -1, "outcome": OUTCOME_ROLLED_BACK, "decided_at": at}


def transaction(state: int, at: int = OLD, expected: int = 1, owned: bool = True, took: int = 5) -> Trace:
    resolved = at + took if state in (STATE_COMMITTED, STATE_ROLLED_BACK) else None
    about = {"expected": expected, "owned": owned, "created_at": at, "resolved_at": resolved}
    return {"sequence": -1, "state": state, **about}


def message(sequence: int = 0, at: int = OLD, due: int | None = SETTLED, **more: Any) -> Trace:
    stored = {"logged": 1, "logged_at": at, "born_at": at, "place": 0, "offset": sequence}
    return {"sequence": sequence, **stored, "due_0": due, **more}


def applied(sequence: int = 0, at: int = OLD + 50) -> Trace:
    return {"sequence": sequence, "inbox_0": 1, "applied_at_0": at}


def effect(sequence: int = 0) -> Trace:
    return {"sequence": sequence, "effect_0": 1}


FINE = [committed_row(), transaction(STATE_COMMITTED), message(), applied()]

# By gid: what its transaction left behind, and what is to be said of it.
CASES: dict[str, tuple[list[Trace], set[str]]] = {
    "fine": (FINE, set()),
    "fine-two": (
        [committed_row(), transaction(STATE_COMMITTED, expected=2), message(), message(1), applied(), applied(1)],
        set(),
    ),
    "fine-rolled-back-by-producer": ([transaction(STATE_ROLLED_BACK)], set()),
    "fine-rolled-back-by-check": ([rolled_back_row(), transaction(STATE_ROLLED_BACK)], set()),
    "fine-sent": ([transaction(STATE_COMMITTED, owned=False), message(), applied()], set()),
    "fine-in-outbox-and-sent": (
        [transaction(STATE_COMMITTED, owned=False), {"sequence": -1, "unsent_at": OLD}, message(), applied()],
        set(),
    ),
    "fine-empty": ([committed_row(), transaction(STATE_COMMITTED, expected=0)], set()),
    "fine-delayed": (
        [committed_row(), transaction(STATE_COMMITTED), {"sequence": 0, "delayed": 1}],
        set(),
    ),
    "store/orders/0/17": ([message(17), applied(17)], set()),
    # lost
    "lost-at-broker": ([committed_row()], {"unknown_to_broker"}),
    "lost-half": (
        [committed_row(), transaction(STATE_COMMITTED, expected=2), message(), applied()],
        {"missing_in_log"},
    ),
    "lost-all": ([committed_row(), transaction(STATE_COMMITTED)], {"missing_in_log"}),
    "lost-at-consumer": ([committed_row(), transaction(STATE_COMMITTED), message()], {"not_applied"}),
    "lost-at-unknown-group": (
        [committed_row(), transaction(STATE_COMMITTED), message(due=UNKNOWN)],
        {"not_applied"},
    ),
    # duplicated
    "twice": ([committed_row(), transaction(STATE_COMMITTED), message(), message(), applied()], {"twice_in_log"}),
    "effect-twice": ([*FINE, effect(), effect()], {"effect_twice"}),
    # ghost
    "ghost": ([transaction(STATE_COMMITTED), message(), applied()], {"no_barrier_row"}),
    "ghost-in-transactional-topic": (
        [transaction(STATE_COMMITTED, owned=False), message(must_have_row=True), applied()],
        {"no_barrier_row"},
    ),
    "ghost-undecided": ([transaction(PREPARED), message(), applied()], {"visible_undecided"}),
    "ghost-rolled-back": ([transaction(STATE_ROLLED_BACK), message(), applied()], {"visible_rolled_back"}),
    "ghost-unknown": ([message(), applied()], {"no_transaction"}),
    "ghost-extra": (
        [committed_row(), transaction(STATE_COMMITTED), message(), message(1), applied(), applied(1)],
        {"extra_in_log"},
    ),
    "ghost-effect": ([applied()], {"applied_not_in_log"}),
    "ghost-effect-of-rolled-back": (
        [rolled_back_row(), transaction(STATE_ROLLED_BACK), applied()],
        {"applied_not_in_log"},
    ),
    "ghost-sequence": ([*FINE, applied(1)], {"applied_not_in_log"}),
    "ghost-sequence-of-many": (
        [
            *(committed_row(), transaction(STATE_COMMITTED, expected=2), message(), message(1)),
            *(applied(), applied(1), applied(7), effect(9)),
        ],
        {"applied_not_in_log"},
    ),
    "ghost-sequence-beyond-what-is-lost": (
        [committed_row(), transaction(STATE_COMMITTED), applied(), applied(1)],
        {"missing_in_log", "applied_not_in_log"},
    ),
    "ghost-sequence-of-a-sent-one": (
        [transaction(STATE_COMMITTED, owned=False), message(), applied(), applied(3)],
        {"applied_not_in_log"},
    ),
    # contradictory
    "contra-1": ([committed_row(), transaction(STATE_ROLLED_BACK)], {"committed_at_producer"}),
    "contra-2": ([rolled_back_row(), transaction(STATE_COMMITTED), message(), applied()], {"rolled_back_at_producer"}),
    # in doubt
    "doubt": ([committed_row(), transaction(PREPARED)], {"prepared"}),
    "doubt-parked": ([transaction(PARKED, at=YOUNG)], {"parked"}),
    "doubt-outbox": ([committed_row(), {"sequence": -1, "unsent_at": OLD}], {"outbox"}),
    "doubt-dead": ([*FINE[:3], {"sequence": 0, "dead_0": 1}], {"dead_letter"}),
    "doubt-unconfirmed": (
        [transaction(STATE_COMMITTED, owned=False), {"sequence": 0, "announced": 1, "logged_at": OLD, "born_at": OLD}],
        {"unconfirmed"},
    ),
    # late
    "late-waiting": ([committed_row(), transaction(STATE_COMMITTED), message(due=WAITING)], {"waiting"}),
    "late-visible": (
        [committed_row(), transaction(STATE_COMMITTED, at=OLD - 400_000, took=300_000), message(), applied()],
        {"visible_late"},
    ),
    "late-applied": ([*FINE[:3], applied(at=OLD + 300_000)], {"applied_late"}),
    # consumers that were told the outcome of a prepared message
    "signed": (
        [
            transaction(STATE_COMMITTED, owned=False),
            message(),
            {"sequence": 0, "announced": 1, "logged_at": OLD, "born_at": OLD},
            applied(),
        ],
        set(),
    ),
    "signed-withdrawn": (
        [
            transaction(STATE_COMMITTED, owned=False),
            {"sequence": 0, "announced": 1, "logged_at": OLD, "born_at": OLD},
            {"sequence": 0, "withdrawn": 1, "logged_at": OLD, "born_at": OLD},
            applied(),
        ],
        set(),
    ),
    # under way: each would be damage if it were older
    "young-at-producer": ([committed_row(YOUNG)], set()),
    "young-committed": ([committed_row(YOUNG), transaction(STATE_COMMITTED, YOUNG)], set()),
    "young-prepared": ([transaction(PREPARED, YOUNG)], set()),
    "young-message": ([committed_row(YOUNG), transaction(STATE_COMMITTED, YOUNG), message(at=YOUNG)], set()),
    "young-in-outbox": ([{"sequence": -1, "unsent_at": YOUNG}], set()),
    # the edges of what is kept: rows that were cleaned up, expired or trimmed by right
    "ancient-forgotten-by-broker": ([committed_row(ANCIENT)], set()),
    "ancient-cleaned-at-producer": ([transaction(STATE_COMMITTED, ANCIENT), message(at=OLD), applied()], set()),
    "ancient-trimmed": ([committed_row(ANCIENT), transaction(STATE_COMMITTED, ANCIENT)], set()),
    "ancient-cleaned-at-consumer": ([message(at=ANCIENT)], set()),
    "ancient-in-log": ([committed_row(ANCIENT), message(at=ANCIENT), applied(at=ANCIENT)], set()),
    "ancient-applied": ([applied(at=ANCIENT)], set()),
    "ancient-trimmed-and-applied": ([transaction(STATE_COMMITTED, ANCIENT), applied(at=ANCIENT)], set()),
    "ancient-ghost-sequence": (
        [transaction(STATE_COMMITTED, ANCIENT), applied(at=ANCIENT), applied(4, at=ANCIENT)],
        {"applied_not_in_log"},
    ),
    "ancient-but-contradictory": ([rolled_back_row(ANCIENT), message(at=ANCIENT)], {"rolled_back_at_producer"}),
}

BOUNDS = Bounds(
    now_ms=NOW,
    grace_ms=60_000,
    late_after_ms=200_000,
    remembered_from=WEEK,
    log_from=WEEK,
    barrier_from=WEEK,
    applied_from=(WEEK,),
    effects=(False,),
    keeps_offset=(False,),
)


def judge(spark: SparkSession, cases: dict[str, list[Trace]], bounds: Bounds) -> tuple[dict[str, set[str]], Trace]:
    """By gid, the codes that it is given; and what was counted."""
    shape = empty_traces(spark, bounds.groups)
    rows = [{"gid": gid, **trace} for gid, traces in cases.items() for trace in traces]
    made = spark.createDataFrame([tuple(row.get(name) for name in shape.columns) for row in rows], shape.schema)
    judged = compare([shape, made], bounds, 2).cache()
    columns = ["t_code", "m_code", *[f"c_code_{number}" for number in range(bounds.groups)]]
    found: dict[str, set[str]] = {gid: set() for gid in cases}
    for row in judged.select("gid", *columns).collect():
        found[row["gid"]] |= {row[name] for name in columns} - {None}
    counted = judged.agg(*counts(bounds)).collect()[0].asDict()
    judged.unpersist()
    return found, counted


def test_each_kind_of_damage_is_found_and_only_that(spark: SparkSession) -> None:
    found, counted = judge(spark, {gid: traces for gid, (traces, _) in CASES.items()}, BOUNDS)
    assert found == {gid: codes for gid, (_, codes) in CASES.items()}
    assert counted["in_flight"] == 3
    assert counted["messages_without_gid"] == 1
    assert counted["transactions"] == len(CASES) - 1


def test_a_value_that_is_not_what_was_sent_is_found(spark: SparkSession) -> None:
    """By digest, where both sides have one."""
    whole = [committed_row(), transaction(STATE_COMMITTED)]
    cases = {
        "same": [*whole, message(payload=17), applied(), {"sequence": 0, "payload_0": 17}],
        "other": [*whole, message(payload=17), applied(), {"sequence": 0, "payload_0": 18}],
        "no-digest-kept": [*whole, message(payload=17), applied()],
        "values-not-read": [*whole, message(), applied(), {"sequence": 0, "payload_0": 17}],
        "prepared": [
            transaction(STATE_COMMITTED, owned=False),
            message(),
            {"sequence": 0, "announced": 1, "logged_at": OLD, "born_at": OLD, "payload": 17},
            applied(),
            {"sequence": 0, "payload_0": 18},
        ],
    }
    found, _ = judge(spark, cases, BOUNDS)
    assert {gid: codes for gid, codes in found.items() if codes} == {
        "other": {"other_value"},
        "prepared": {"other_value"},
    }


OLD_NAMED = f"0a1b2c3d-{ANCIENT:011x}{'0' * 20}"


@pytest.mark.full
def test_an_old_name_hides_no_ghost_where_the_whole_log_is_there(spark: SparkSession) -> None:
    """With nothing gone from the log there is nothing that an old message could have been trimmed with."""
    cases = {
        OLD_NAMED: [applied()],
        "ancient": [applied(at=ANCIENT)],
        "ancient-and-forgotten": [committed_row(ANCIENT), message(at=ANCIENT), applied(at=ANCIENT)],
        "store/orders/0/3": [applied(3, at=ANCIENT)],
    }
    whole = Bounds(**{**_fields(BOUNDS), "log_from": BEGINNING})
    found, _ = judge(spark, cases, whole)
    ghost = {"applied_not_in_log"}
    assert found == {OLD_NAMED: ghost, "ancient": ghost, "ancient-and-forgotten": set(), "store/orders/0/3": ghost}
    for partly in ({}, {"log_from": BEGINNING, "whole_log": False}):
        found, _ = judge(spark, cases, Bounds(**{**_fields(BOUNDS), **partly}))
        assert not any(found.values())


@pytest.mark.full
def test_with_the_effects_given_they_count_and_not_the_inbox(spark: SparkSession) -> None:
    whole = [committed_row(), transaction(STATE_COMMITTED), message()]
    cases = {
        "effect": [*whole, applied(), effect()],
        "inbox-without-effect": [*whole, applied()],
        "effect-without-inbox": [*whole, effect()],
        "neither": whole,
    }
    found, _ = judge(spark, cases, Bounds(**{**_fields(BOUNDS), "effects": (True,)}))
    assert found == {
        "effect": set(),
        "inbox-without-effect": {"no_effect"},
        "effect-without-inbox": set(),
        "neither": {"not_applied"},
    }


@pytest.mark.full
def test_without_a_broker_producers_and_consumers_are_compared_by_gid(spark: SparkSession) -> None:
    cases = {
        "fine": [committed_row(), applied(3)],
        "never": [committed_row()],
        "young": [committed_row(YOUNG)],
        "ghost": [applied()],
        "contra": [rolled_back_row(), applied()],
        "rolled-back": [rolled_back_row()],
        "ancient": [committed_row(ANCIENT)],
        "unsent": [committed_row(), {"sequence": -1, "unsent_at": OLD}],
        "store/orders/0/1": [applied(1)],
    }
    found, _ = judge(spark, cases, Bounds(**{**_fields(BOUNDS), "brokers": False}))
    assert {gid: codes for gid, codes in found.items() if codes} == {
        "never": {"never_applied"},
        "ghost": {"applied_without_commit"},
        "contra": {"rolled_back_at_producer"},
        "unsent": {"outbox"},
    }


@pytest.mark.full
def test_a_window_never_cuts_a_transaction_in_two(spark: SparkSession) -> None:
    """What began outside of the window is left alone, even if a part of it lies inside; and the other way round."""
    cases = {
        "began-before": [transaction(STATE_COMMITTED, OLD - 10, took=20), message(at=OLD + 10)],
        "began-inside-ended-after": [transaction(STATE_COMMITTED, OLD + 500, took=2_000), message(at=OLD + 2_500)],
        "began-after": [transaction(STATE_COMMITTED, OLD + 1_000), message(at=OLD + 1_005)],
        # The broker has forgotten it; its name tells when it began.
        f"0a1b2c3d-{OLD - 10:011x}{'0' * 20}": [committed_row(OLD + 10)],
        f"0a1b2c3d-{OLD + 10:011x}{'0' * 20}": [committed_row(OLD + 20)],
    }
    window = Bounds(**{**_fields(BOUNDS), "since_ms": OLD, "until_ms": OLD + 1_000})
    found, counted = judge(spark, cases, window)
    assert {gid: codes for gid, codes in found.items() if codes} == {
        "began-inside-ended-after": {"no_barrier_row", "not_applied"},
        f"0a1b2c3d-{OLD + 10:011x}{'0' * 20}": {"unknown_to_broker"},
    }
    assert counted["outside_of_window"] == 3


def test_counts_alone_would_miss_a_swapped_pair(spark: SparkSession) -> None:
    """The negative control: one message lost and another applied that never was, so that every count is right."""
    cases = {
        "a": [committed_row(), transaction(STATE_COMMITTED), message(), applied()],
        "b": [committed_row(), transaction(STATE_COMMITTED), message()],
        "c": [applied()],
    }
    found, counted = judge(spark, cases, BOUNDS)
    assert counted["producer_committed"] == counted["broker_committed"] == counted["messages_in_log"] == 2
    assert counted["inbox_0"] == 2  # a judge that counts calls this clean
    assert found == {"a": set(), "b": {"not_applied"}, "c": {"applied_not_in_log"}}


def _fields(bounds: Bounds) -> dict[str, Any]:
    return {name: getattr(bounds, name) for name in bounds.__struct_fields__}
