"""Calls as the store sees them: when they are due, in what order, who holds them, and what follows each answer."""

from __future__ import annotations

import call_transactions
import engines
import pytest
from call_transactions import LEASE, A, B, call, calls_of, claimed, claims, counts, finish, prepare, send, states
from engines import MakePlace, Place, message

from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallOutcome, CallPolicy, CallResult, OutgoingCall
from tallystick.core.ops import AnswerChecks, Commit, Rollback, Send
from tallystick.store.protocol import (
    ClaimCalls,
    FinishCalls,
    OperatorResolve,
    RequeueCalls,
)

make_place = engines.make_place
place = engines.place
steady = call_transactions.steady

# --- when a call is due ------------------------------------------------------------------------------------------


def test_a_call_is_held_until_its_transaction_commits(place: Place) -> None:
    place.do(prepare("t1"))
    assert claimed(place) == []
    assert states(place, "t1") == ["held"]
    place.do(Commit("t1"))
    assert counts(place) == (1, 0)
    assert claimed(place) == ["t1/01"]
    assert place.view("t1").calls == 1


@pytest.mark.parametrize("by", ["rollback", "check", "operator"])
def test_calls_of_a_transaction_that_was_rolled_back_are_never_made(place: Place, by: str) -> None:
    place.do(prepare("t1"))
    ops = {
        "rollback": Rollback("t1"),
        "check": AnswerChecks({"t1": "rolled_back"}),
        "operator": OperatorResolve("t1", "rolled_back"),
    }
    place.do(ops[by])
    place.wait(10**9)
    assert claimed(place) == []
    assert states(place, "t1") == ["dropped"]
    assert counts(place) == (0, 0)


@pytest.mark.parametrize("by", ["check", "operator"])
def test_whoever_commits_makes_the_calls_due(place: Place, by: str) -> None:
    place.do(prepare("t1"))
    place.do(AnswerChecks({"t1": "committed"}) if by == "check" else OperatorResolve("t1", "committed"))
    assert claimed(place) == ["t1/01"]


def test_messages_and_calls_of_one_transaction_come_together(place: Place) -> None:
    place.do(prepare("t1", messages=[message("m")]))
    place.do(Commit("t1"))
    assert place.values() == ["m"]
    assert claimed(place) == ["t1/01"]


def test_a_second_commit_makes_nothing_due_again(place: Place) -> None:
    place.do(prepare("t1"))
    place.do(Commit("t1"))
    claims(place)
    finish(place, "t1", "success")
    for op in (Commit("t1"), AnswerChecks({"t1": "committed"}), send("t1")):
        place.do(op)
    place.wait(10**7)
    assert claimed(place) == []
    assert states(place, "t1") == ["done"]


def test_calls_without_a_transaction_need_a_gid_and_are_made_once(place: Place) -> None:
    assert place.refused(Send([], None, [call()])).field == "gid"
    place.do(send("s1"))
    assert place.do(send("s1")).duplicate
    assert claimed(place) == ["s1/01"]
    assert claimed(place) == []


@pytest.mark.parametrize(("own", "at_commit", "due"), [(5_000, 0, 5_000), (0, 7_000, 7_000), (5_000, 7_000, 7_000)])
def test_a_delay_counts_from_the_prepare(place: Place, own: int, at_commit: int, due: int) -> None:
    place.do(prepare("t1", call(delay_ms=own)))
    place.wait(3_000)
    place.do(Commit("t1", delay_ms=at_commit))
    place.wait(due - 3_001)
    assert claimed(place, early=True) == []
    place.wait(1)
    assert claimed(place) == ["t1/01"]


def test_the_channels_of_new_calls_are_told_once(place: Place) -> None:
    place.do(prepare("t1", call(A), call(B), call_options=CallPolicy(concurrent=True)))
    assert place.take_made().called == set()
    place.do(Commit("t1"))
    hosts = {place.channel("http://a:1", "call"), place.channel("http://b:1", "call")}
    assert place.take_made().called == hosts
    assert place.take_made().called == set()


# --- order -------------------------------------------------------------------------------------------------------


def test_in_order_the_next_is_due_only_after_the_one_before_succeeded(steady: Place) -> None:
    steady.do(send("s1", call(A), call(B), call(A)))
    assert claimed(steady) == ["s1/01"]
    finish(steady, "s1", "error")
    assert claimed(steady, early=True) == []
    steady.wait(1_000)
    assert claimed(steady) == ["s1/01"]
    finish(steady, "s1", "success")
    assert claimed(steady) == ["s1/02"]
    finish(steady, "s1", "success", 1)
    assert claimed(steady) == ["s1/03"]
    finish(steady, "s1", "success", 2)
    view = steady.store.calls("s1")
    assert view is not None
    assert (view.state, view.finished_at) == ("done", steady.now)


def test_concurrent_calls_are_all_due_at_once_and_do_not_wait_for_each_other(steady: Place) -> None:
    steady.do(send("s1", call(A), call(B), call(A), concurrent=True))
    assert claimed(steady) == ["s1/01", "s1/02", "s1/03"]
    finish(steady, "s1", "error", 1)
    finish(steady, "s1", "success", 2)
    assert states(steady, "s1") == ["waiting", "waiting", "done"]
    steady.wait(1_000)
    assert claimed(steady) == ["s1/02"]


def test_a_parked_call_holds_those_behind_it(steady: Place) -> None:
    steady.do(send("s1", call(A), call(B), max_attempts=1))
    claims(steady)
    finish(steady, "s1", "failure", error="no")
    steady.wait(10**7)
    assert claimed(steady) == []
    assert states(steady, "s1") == ["parked", "waiting"]
    assert counts(steady) == (1, 1)


# --- answers -----------------------------------------------------------------------------------------------------


def test_the_waits_double_up_to_the_cap_and_the_last_try_parks(make_place: MakePlace) -> None:
    place = make_place(calls=Backoff(1_000, 3_000, jitter=0.0), max_call_attempts=5)
    place.do(send("s1"))
    for wait in (1_000, 2_000, 3_000, 3_000):
        assert claimed(place) == ["s1/01"]
        finish(place, "s1", "error", error="status 500")
        assert calls_of(place, "s1")[0].next_at == place.now + wait
        place.wait(wait - 1)
        assert claimed(place) == []
        place.wait(1)
    claims(place)
    finish(place, "s1", "error", error="status 500")
    (one,) = calls_of(place, "s1")
    assert (one.state, one.attempts, one.last_error) == ("parked", 5, "status 500")
    events = place.take_made().events
    assert [(event.kind, event.subject) for event in events] == [("call_failing", "s1"), ("call_parked", "s1")]
    assert all(A in event.detail for event in events)


def test_a_service_that_is_still_at_it_is_asked_again_at_the_base_interval(steady: Place) -> None:
    steady.do(send("s1", retry_ms=500))
    for _ in range(3):
        assert claimed(steady) == ["s1/01"]
        finish(steady, "s1", "ongoing")
        assert calls_of(steady, "s1")[0].next_at == steady.now + 500
        steady.wait(500)
    assert calls_of(steady, "s1")[0].attempts == 3


def test_a_transaction_has_its_own_interval_and_limit(steady: Place) -> None:
    steady.do(send("s1", retry_ms=20_000, max_attempts=2))
    claims(steady)
    finish(steady, "s1", "error")
    assert calls_of(steady, "s1")[0].next_at == steady.now + 20_000, "longer than the cap, as was asked for"
    steady.wait(20_000)
    claims(steady)
    finish(steady, "s1", "error")
    assert states(steady, "s1") == ["parked"]


def test_a_call_that_was_not_tried_is_in_line_again_and_no_attempt(steady: Place) -> None:
    steady.do(send("s1"))
    claims(steady)
    finish(steady, "s1", "released")
    assert calls_of(steady, "s1")[0].attempts == 0
    assert claimed(steady) == ["s1/01"]


def test_only_what_waits_for_its_host_is_claimed_early(steady: Place) -> None:
    for gid, outcome in (("unreached", "unreachable"), ("refused", "error"), ("late", "ongoing")):
        steady.do(send(gid))
        claims(steady)
        finish(steady, gid, outcome)  # type: ignore[arg-type]
    steady.do(send("own"))
    claims(steady)
    steady.do(FinishCalls([CallResult("own", 0, "unreachable", own=True)]))
    steady.do(send("delayed", call(delay_ms=500)))
    assert claimed(steady) == []
    assert claimed(steady, early=True) == ["unreached/01"]
    assert claimed(steady, early=True) == []


@pytest.mark.parametrize("late", ["success", "error", "failure", "released", "unreachable", "ongoing"])
def test_a_call_that_succeeded_is_never_made_again(steady: Place, late: CallOutcome) -> None:
    steady.do(send("s1"))
    claims(steady)
    finish(steady, "s1", "success")
    finish(steady, "s1", late)
    steady.wait(10**8)
    steady.do(RequeueCalls(100, all=True))
    assert claimed(steady, early=True) == []
    assert states(steady, "s1") == ["done"]
    assert counts(steady) == (0, 0)


# --- leases ------------------------------------------------------------------------------------------------------


def test_a_claim_is_a_lease(steady: Place) -> None:
    steady.do(send("s1"))
    assert claimed(steady) == ["s1/01"]
    steady.reopen()
    steady.wait(LEASE - 1)
    assert claimed(steady) == []
    steady.wait(1)
    assert claimed(steady) == ["s1/01"]
    assert calls_of(steady, "s1")[0].attempts == 0


def test_a_new_broker_takes_back_what_the_dead_one_held(steady: Place) -> None:
    for number in range(5):
        steady.do(send(f"s{number}"))
    claims(steady)
    steady.reopen()
    assert steady.sweep(RequeueCalls(3, all=True)).more
    assert not steady.sweep(RequeueCalls(3, all=True)).more
    assert claimed(steady) == [f"s{number}/01" for number in range(5)]


def test_an_answer_after_the_lease_counts_if_it_is_a_success(steady: Place) -> None:
    steady.do(send("s1"))
    claims(steady)
    steady.wait(LEASE)
    assert claimed(steady) == ["s1/01"], "somebody else has it now"
    finish(steady, "s1", "success")
    finish(steady, "s1", "error")
    assert states(steady, "s1") == ["done"]


def test_a_claim_takes_no_more_than_its_limits_in_calls_and_bytes(steady: Place) -> None:
    for number in range(6):
        steady.do(send(f"s{number}", call(body="x" * 100)))
    assert len(claimed(steady, limit=2)) == 2
    assert len(claimed(steady, max_bytes=150)) == 2, "the one that goes over is still taken"
    assert len(claimed(steady)) == 2


def test_a_claim_tells_when_more_is_due(steady: Place) -> None:
    steady.do(send("s1"))
    steady.do(send("s2", call(delay_ms=9_000)))
    channel = steady.channel("http://a:1", "call")
    assert claims(steady, limit=1).next_due == {channel: steady.now + 9_000}
    assert claims(steady).next_due == {channel: steady.now + 9_000}
    steady.wait(9_000)
    assert claims(steady).next_due == {channel: None}


def test_one_host_is_no_other_hosts_line(steady: Place) -> None:
    steady.do(send("s1", call(A)))
    steady.do(send("s2", call(B)))
    only = [steady.channel("http://b:1", "call")]
    result = steady.do(ClaimCalls(only, 10, 1 << 20, LEASE))
    assert [one.gid for one in result.claims] == ["s2"]


def test_everything_is_there_after_the_store_was_closed(steady: Place) -> None:
    steady.do(prepare("held", call(A, headers={"h": "v"}, timeout_ms=7, delay_ms=3), remark="kept"))
    steady.do(send("s1", call(A, "body", headers={"h": "v"}, timeout_ms=7)))
    claims(steady)
    finish(steady, "s1", "failure", error="why")
    before = [steady.store.calls(gid) for gid in ("held", "s1")]
    steady.reopen()
    assert [steady.store.calls(gid) for gid in ("held", "s1")] == before
    assert before[0] is not None
    assert before[0].remark == "kept"
    steady.wait(1_000)
    (one,) = claims(steady).claims
    assert one.call == OutgoingCall(A, b"body", {"h": "v"}, "http", 7, 0, "01")
    assert one.attempts == 1
