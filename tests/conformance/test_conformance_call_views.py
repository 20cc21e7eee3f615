"""Calls as people see and steer them: an operator's word, call topics, lists, and the end of their history."""

from __future__ import annotations

import call_transactions
import engines
import pytest
from call_transactions import LEASE, A, B, call, calls_of, claimed, claims, counts, finish, prepare, send, states
from engines import MakePlace, Place

from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallOutcome, CallPolicy, first_pass_over
from tallystick.core.errors import InvalidRequest
from tallystick.core.limits import Limits
from tallystick.core.ops import Check, Prepare, Rollback
from tallystick.store.protocol import (
    ClaimChecks,
    DropCallTopic,
    ExpireTombstones,
    Hurry,
    HurryAll,
    ResumeCalls,
    StopCalls,
    StoreOp,
    Subscribe,
    TableQuery,
    Unsubscribe,
)

make_place = engines.make_place
place = engines.place
steady = call_transactions.steady

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
        prepare("t1", call_options=CallPolicy(concurrent=True)),
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


def test_each_refusal_of_a_call_topic_has_a_code_and_a_place_of_its_own(place: Place) -> None:
    def refusal(op: StoreOp) -> tuple[str | None, str | None]:
        refused = place.refused(op)
        return refused.error, refused.field

    assert refusal(Subscribe("", A)) == ("invalid_request", "topic")
    assert refusal(Subscribe("news", "")) == ("invalid_request", "url")
    assert refusal(Unsubscribe("news", A)) == ("not_found", "topic")
    assert refusal(send("s1", call("topic://news"))) == ("not_found", "calls")
    place.do(Subscribe("news", A))
    assert refusal(Subscribe("news", A)) == ("conflict", "url")
    assert refusal(Unsubscribe("news", B)) == ("not_found", "url")
    place.do(Unsubscribe("news", A))
    assert refusal(Unsubscribe("news", A)) == ("not_found", "subscribers")
    assert refusal(send("s1", call("topic://news"))) == ("not_found", "calls")


def test_a_deleted_call_topic_is_gone_and_can_be_made_again(place: Place) -> None:
    place.do(Subscribe("news", A))
    place.do(Subscribe("news", B))
    place.do(DropCallTopic("news"))
    assert place.refused(DropCallTopic("news")).error == "not_found"
    assert place.refused(send("s1", call("topic://news"))).field == "calls"
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
