"""Calls as the store sees them: when they are due, in what order, who holds them, and what follows each answer."""

from __future__ import annotations

from typing import Any

import engines
import pytest
from engines import MakePlace, Place, message

from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallOptions, CallOutcome, CallResult, CallView, OutgoingCall, first_pass_over
from tallystick.core.errors import InvalidRequest
from tallystick.core.limits import Limits
from tallystick.core.ops import AnswerChecks, Check, Commit, Prepare, Rollback, Send
from tallystick.store.protocol import (
    ClaimCalls,
    ClaimChecks,
    ClaimedCalls,
    DropCallTopic,
    ExpireTombstones,
    FinishCalls,
    Hurry,
    HurryAll,
    OperatorResolve,
    RequeueCalls,
    ResumeCalls,
    StopCalls,
    Subscribe,
    TableQuery,
    Unsubscribe,
)

make_place = engines.make_place
place = engines.place

LEASE = 20_000
A, B = "http://a:1/x", "http://b:1/x"


@pytest.fixture
def steady(make_place: MakePlace) -> Place:
    """Tries without jitter: again after 1, 2, 4, 8, 8 s; four at most."""
    return make_place(calls=Backoff(1_000, 8_000, jitter=0.0), max_call_attempts=4)


def call(url: str = A, body: str = "b", **rest: Any) -> OutgoingCall:
    return OutgoingCall(url, body.encode(), **rest)


def prepare(gid: str, *calls: OutgoingCall, **rest: Any) -> Prepare:
    return Prepare(gid, "shop", rest.pop("messages", []), calls=list(calls or (call(),)), **rest)


def send(gid: str, *calls: OutgoingCall, **options: Any) -> Send:
    return Send([], gid, list(calls or (call(),)), CallOptions(**options))


def claims(place: Place, early: bool = False, limit: int = 100, max_bytes: int = 1 << 20) -> ClaimedCalls:
    channels = [one.id for one in place.store.channels() if one.via == "call"]
    result = place.do(ClaimCalls(channels, limit, max_bytes, LEASE, early))
    assert isinstance(result, ClaimedCalls)
    return result


def claimed(place: Place, **rest: Any) -> list[str]:
    return sorted(f"{one.gid}/{one.call.branch}" for one in claims(place, **rest).claims)


def finish(place: Place, gid: str, outcome: CallOutcome, index: int = 0, error: str = "") -> None:
    place.do(FinishCalls([CallResult(gid, index, outcome, error)]))


def calls_of(place: Place, gid: str) -> list[CallView]:
    view = place.store.calls(gid)
    assert view is not None
    return view.calls


def states(place: Place, gid: str) -> list[str]:
    return [one.state for one in calls_of(place, gid)]


def counts(place: Place) -> tuple[int, int]:
    found = place.store.counts()
    return found.calls_waiting, found.calls_parked


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
    place.do(prepare("t1", call(A), call(B), call_options=CallOptions(concurrent=True)))
    assert place.store.drain_called() == set()
    place.do(Commit("t1"))
    hosts = {place.channel("http://a:1", "call"), place.channel("http://b:1", "call")}
    assert place.store.drain_called() == hosts
    assert place.store.drain_called() == set()


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
    events = place.store.drain_events()
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


# --- an operator's word ------------------------------------------------------------------------------------------


def test_parked_calls_are_made_again_when_resumed(steady: Place) -> None:
    steady.do(send("s1", max_attempts=1))
    claims(steady)
    finish(steady, "s1", "error")
    assert counts(steady) == (0, 1)
    steady.do(ResumeCalls("s1"))
    assert steady.do(ResumeCalls("s1")).duplicate
    assert counts(steady) == (1, 0)
    assert claimed(steady) == ["s1/01"]
    finish(steady, "s1", "success")
    assert counts(steady) == (0, 0)


def test_stopped_calls_are_not_made_any_more(steady: Place) -> None:
    steady.do(send("s1", call(A), call(B), call(A)))
    claims(steady)
    finish(steady, "s1", "success")
    steady.do(StopCalls("s1"))
    assert steady.do(StopCalls("s1")).duplicate
    steady.wait(10**7)
    assert claimed(steady, early=True) == []
    assert states(steady, "s1") == ["done", "stopped", "stopped"]
    assert counts(steady) == (0, 0)


@pytest.mark.parametrize(("answer", "state"), [("success", "done"), ("error", "stopped")])
def test_a_call_under_way_while_it_is_stopped_ends_as_it_was_answered(
    steady: Place, answer: CallOutcome, state: str
) -> None:
    steady.do(send("s1"))
    claims(steady)
    steady.do(StopCalls("s1"))
    finish(steady, "s1", answer)
    assert states(steady, "s1") == [state]
    assert counts(steady) == (0, 0)


def test_what_cannot_be_stopped_or_resumed_says_why(steady: Place) -> None:
    steady.do(prepare("t1"))
    for op in (StopCalls("t1"), StopCalls("nobody"), ResumeCalls("nobody")):
        assert steady.refused(op).error == "not_found"
    steady.do(send("s1"))
    claims(steady)
    finish(steady, "s1", "success")
    assert steady.refused(StopCalls("s1")).error == "conflict"


def test_hurrying_brings_tries_and_checks_forward_but_not_what_was_delayed(steady: Place) -> None:
    steady.do(send("tried"))
    claims(steady)
    finish(steady, "tried", "error")
    steady.do(send("delayed", call(delay_ms=50_000)))
    steady.do(prepare("pending"))
    for gid in ("tried", "delayed", "pending"):
        steady.do(Hurry(gid))
    assert claimed(steady) == ["tried/01"]
    assert steady.claim(ClaimChecks([steady.channel()], 10, LEASE)) == ["pending"]
    assert steady.refused(Hurry("nobody")).error == "not_found"


def test_hurrying_all_takes_those_far_away_and_no_more_than_its_limit(steady: Place) -> None:
    for number in range(4):
        steady.do(send(f"s{number}", retry_ms=60_000 if number else 1_000))
        claims(steady)
        finish(steady, f"s{number}", "error")
    progress = steady.sweep(HurryAll(30_000, 2))
    assert (progress.done, progress.more) == (2, True)
    assert claimed(steady) == ["s1/01", "s2/01"]
    progress = steady.sweep(HurryAll(30_000, 2))
    assert (progress.done, progress.more) == (1, False)
    assert claimed(steady) == ["s3/01"]


# --- repetition and limits ---------------------------------------------------------------------------------------


def test_a_repeated_prepare_must_have_the_same_calls(place: Place) -> None:
    place.do(prepare("t1"))
    assert place.do(prepare("t1")).duplicate
    for other in (
        prepare("t1", call(B)),
        prepare("t1", call(body="other")),
        prepare("t1", call(), call()),
        prepare("t1", call_options=CallOptions(concurrent=True)),
        Prepare("t1", "shop", []),
    ):
        assert place.refused(other).error == "different_content"


def test_too_many_hosts_and_two_calls_of_one_name_are_refused(make_place: MakePlace) -> None:
    place = make_place(limits=Limits(groups=2, transaction_messages=3))
    assert place.refused(prepare("t1", call(branch="x"), call(branch="x"))).field == "calls"
    place.do(send("s1", call(A)))
    place.do(send("s2", call(B)))
    assert place.refused(send("s3", call("http://c:1/x"))).error == "too_large"
    assert place.store.calls("s3") is None


# --- call topics -------------------------------------------------------------------------------------------------


def test_a_call_topic_is_expanded_when_the_transaction_comes_in(place: Place) -> None:
    place.do(Subscribe("news", A, "first"))
    place.do(send("one", call("topic://news"), call(B)))
    place.do(Subscribe("news", "grpc://c:1/p.S/M"))
    place.do(send("two", call("topic://news"), call(B)))
    place.do(Unsubscribe("news", A))
    assert [(one.branch, one.url) for one in calls_of(place, "one")] == [("01", A), ("02", B)]
    assert [(one.branch, one.url, one.protocol) for one in calls_of(place, "two")] == [
        ("01-01", A, "http"),
        ("01-02", "grpc://c:1/p.S/M", "grpc"),
        ("02", B, "http"),
    ]


def test_call_topics_refuse_in_dtms_words(place: Place) -> None:
    said = {
        "empty topic": Subscribe("", A),
        "empty url": Subscribe("news", ""),
        "no such a topic": Unsubscribe("news", A),
        "topic not found": send("s1", call("topic://news")),
    }
    assert {detail: place.refused(op).detail for detail, op in said.items()} == {detail: detail for detail in said}
    place.do(Subscribe("news", A))
    assert place.refused(Subscribe("news", A)).detail == "this url exists"
    assert place.refused(Unsubscribe("news", B)).detail == "no such an url "
    place.do(Unsubscribe("news", A))
    assert place.refused(Unsubscribe("news", A)).detail == "this topic is empty"
    assert place.refused(send("s1", call("topic://news"))).detail == "topic not found"


def test_a_deleted_call_topic_is_gone_and_can_be_made_again(place: Place) -> None:
    place.do(Subscribe("news", A))
    place.do(Subscribe("news", B))
    place.do(DropCallTopic("news"))
    assert place.refused(DropCallTopic("news")).error == "not_found"
    assert place.refused(send("s1", call("topic://news"))).detail == "topic not found"
    place.reopen()
    assert place.store.call_topics() == []
    place.do(Subscribe("news", B))
    place.reopen()
    (view,) = place.store.call_topics()
    assert (view.version, [one.url for one in view.subscribers]) == (1, [B])
    place.do(send("s1", call("topic://news")))
    assert [one.url for one in calls_of(place, "s1")] == [B]


# --- the end of the history, and lists ---------------------------------------------------------------------------


def test_a_transaction_is_not_forgotten_before_its_calls_are_done(make_place: MakePlace) -> None:
    place = make_place(dedup_retention_ms=1_000, calls=Backoff(100, 100, jitter=0.0))
    place.do(send("open"))
    place.do(send("done"))
    place.do(prepare("back"))
    place.do(Rollback("back"))
    claims(place)
    finish(place, "done", "success")
    finish(place, "open", "error")
    place.wait(1_001)
    place.sweep(ExpireTombstones(100))
    assert [place.store.transaction(gid) is None for gid in ("open", "done", "back")] == [False, True, True]
    place.reopen()
    assert claimed(place) == ["open/01"]
    finish(place, "open", "success")
    assert place.do(send("open")).duplicate
    place.wait(1_001)
    place.sweep(ExpireTombstones(100))
    assert place.store.transaction("open") is None
    assert place.store.page(TableQuery("calls", 10)).columns["gid"] == []


def test_lists_and_the_table_show_every_call_once_page_by_page(steady: Place) -> None:
    for number in range(7):
        steady.do(send(f"s{number}", max_attempts=1 if number < 3 else 9))
    claims(steady)
    for number in range(5):
        finish(steady, f"s{number}", "error")
    finish(steady, "s5", "success")

    def listed(state: str | None) -> list[str]:
        found: list[str] = []
        after: str | None = None
        while True:
            page, after = steady.store.scan_calls(state, after, 2)
            found += [one.gid for one in page]
            if after is None:
                return sorted(found)

    assert listed("parked") == ["s0", "s1", "s2"]
    assert listed("waiting") == ["s3", "s4", "s6"]
    assert listed(None) == ["s0", "s1", "s2", "s3", "s4", "s6"]
    with pytest.raises(InvalidRequest):
        steady.store.scan_calls("parked", "6f00", 2)

    def rows(state: str | None) -> list[tuple[str, str]]:
        columns = steady.store.page(TableQuery("calls", 100, state=state)).columns
        return sorted(zip(columns["gid"], columns["state"], strict=True))

    assert rows("parked") == [(gid, "parked") for gid in ("s0", "s1", "s2")]
    assert rows("waiting") == [(gid, "waiting") for gid in ("s3", "s4", "s6")]
    assert [state for _, state in rows(None)] == ["parked"] * 3 + ["waiting"] * 2 + ["done", "waiting"]


def test_bodies_can_be_seen_and_those_of_a_rolled_back_one_are_gone(place: Place) -> None:
    place.do(prepare("t1", call(body="kept")))
    assert place.store.call_body("t1", 0) == b"kept"
    place.do(Rollback("t1"))
    assert place.store.call_body("t1", 0) == b""


def test_the_first_pass_is_over_when_each_that_could_be_tried_was(steady: Place) -> None:
    def over(gid: str) -> bool:
        view = steady.store.calls(gid)
        assert view is not None
        return first_pass_over(view)

    steady.do(send("row", call(A), call(B)))
    steady.do(send("all", call(A), call(B), concurrent=True))
    claims(steady)
    assert not over("row")
    finish(steady, "row", "success")
    assert not over("row")
    claims(steady)
    finish(steady, "row", "error", 1)
    assert over("row")
    finish(steady, "all", "error")
    assert not over("all")
    finish(steady, "all", "success", 1)
    assert over("all")


def test_checks_of_a_url_carry_their_headers_and_time(place: Place) -> None:
    check = Check("url", "http://h:1/check", after_ms=0, headers={"who": "me"}, timeout_ms=70)
    place.do(prepare("t1", check=check))
    result = place.do(ClaimChecks([place.channel("http://h:1", "url")], 10, LEASE))
    assert [(one.headers, one.timeout_ms) for one in result.claims] == [({"who": "me"}, 70)]
