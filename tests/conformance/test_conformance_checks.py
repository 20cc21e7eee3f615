"""Check-backs as the store sees them: what is due, who holds it, and what follows an answer or none."""

from __future__ import annotations

import random
from typing import Any

import engines
import pytest
from engines import MakePlace, Place, message, prepare

from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallPolicy, OutgoingCall
from tallystick.core.ops import AnswerChecks, Check, Commit, Prepare, Rollback
from tallystick.core.transaction import CheckDefaults
from tallystick.store.protocol import (
    ClaimCalls,
    ClaimChecks,
    Claimed,
    ClaimedCalls,
    FailChecks,
    OperatorResolve,
    ParkOld,
    Resume,
    TableQuery,
)

make_place = engines.make_place
place = engines.place

LEASE = 20_000


@pytest.fixture
def steady(make_place: MakePlace) -> Place:
    """Checks without jitter: after 10 s, then 2, 4, 8, 8 s; five at most."""
    return make_place(checks=CheckDefaults(10_000, 5, Backoff(2_000, 8_000, jitter=0.0), "park", 3_600_000))


def claim(place: Place, *names: str, limit: int = 100) -> list[str]:
    return place.claim(ClaimChecks([place.channel(name) for name in names or ("shop",)], limit, LEASE))


def test_only_what_is_due_is_claimed(steady: Place) -> None:
    steady.do(prepare("t1"))
    steady.wait(5_000)
    steady.do(prepare("t2"))
    steady.do(prepare("soon", check=Check(after_ms=1)))
    assert claim(steady) == []
    steady.wait(1)
    assert claim(steady) == ["soon"]
    steady.wait(4_999)
    assert claim(steady) == ["t1"]
    steady.wait(5_000)
    assert claim(steady) == ["t2"]


def test_a_claim_is_a_lease_and_nobody_else_gets_the_transaction_meanwhile(steady: Place) -> None:
    steady.do(prepare("t1"))
    steady.wait(10_000)
    assert claim(steady) == ["t1"]
    for _ in range(4):
        assert claim(steady) == []
        steady.wait(LEASE // 5)
    steady.reopen()
    assert claim(steady) == []
    steady.wait(LEASE // 5)
    assert claim(steady) == ["t1"]
    assert steady.view("t1").checks == 0, "a claim that nobody finished was no check"


def test_a_claim_tells_all_that_the_asker_needs(steady: Place) -> None:
    check = Check("url", "http://127.0.0.1:9/check?a=b", "bank", 0)
    steady.do(Prepare("t1", "shop", [message()], check, "member-1"))
    channel = steady.channel("http://127.0.0.1:9", "url")
    result = steady.do(ClaimChecks([channel], 10, LEASE))
    assert isinstance(result, Claimed)
    (one,) = result.claims
    assert (one.channel, one.via, one.target) == (channel, "url", check.target)
    assert (one.group, one.member) == ("shop", "member-1")
    assert (one.request.gid, one.request.source, one.request.checks) == ("t1", "bank", 0)
    assert one.request.created_at == steady.now


@pytest.mark.parametrize(("remark", "dtm", "retry_ms"), [('{"rule":"dtm"}', True, 3_000), ("why", False, None)])
def test_claims_show_what_came_through_dtms_interfaces(
    place: Place, remark: str, dtm: bool, retry_ms: int | None
) -> None:
    calls = [OutgoingCall("http://127.0.0.1:9/in", b"b")]
    check = Check("url", "http://127.0.0.1:9/check", after_ms=0)
    place.do(Prepare("t1", "dtm", [], check, calls=calls, call_options=CallPolicy(retry_ms=3_000), remark=remark))
    place.reopen()
    claimed = place.do(ClaimChecks([place.channel("http://127.0.0.1:9", "url")], 10, LEASE))
    assert isinstance(claimed, Claimed)
    assert [(one.dtm, one.retry_ms) for one in claimed.claims] == [(dtm, retry_ms)]
    place.do(AnswerChecks({"t1": "committed"}))
    place.reopen()
    due = place.do(ClaimCalls([place.channel("http://127.0.0.1:9", "call")], 10, 1 << 20, LEASE))
    assert isinstance(due, ClaimedCalls)
    assert [one.dtm for one in due.claims] == [dtm]


def test_a_wait_that_a_check_names_counts_the_check_and_is_kept_to(steady: Place) -> None:
    """Also one beyond the longest wait of the store, which must not look like one of a clock that was set back."""
    steady.do(prepare("t1"))
    steady.wait(10_000)
    assert claim(steady) == ["t1"]
    steady.do(FailChecks({"t1": "ongoing"}, retry_ms=100_000))
    assert (steady.view("t1").checks, steady.view("t1").last_error) == (1, "ongoing")
    steady.do(prepare("t2", check=Check(after_ms=99_000)))
    assert claim(steady) == []
    steady.wait(99_000)
    steady.reopen()
    assert claim(steady) == ["t2"]
    steady.wait(999)
    assert claim(steady) == []
    steady.wait(1)
    assert claim(steady) == ["t1"]


def test_a_claim_tells_when_the_next_is_due(steady: Place) -> None:
    steady.do(prepare("t1"))
    steady.wait(3_000)
    steady.do(prepare("t2"))
    channel = steady.channel()
    assert steady.do(ClaimChecks([channel], 10, LEASE)).next_due == {channel: steady.now + 7_000}
    steady.wait(7_000)
    assert steady.do(ClaimChecks([channel], 10, LEASE)).next_due == {channel: steady.now + 3_000}
    steady.wait(3_000)
    assert steady.do(ClaimChecks([channel], 10, LEASE)).next_due == {channel: steady.now + LEASE - 3_000}
    steady.do(Commit("t1"))
    steady.do(Commit("t2"))
    # Nothing is due before that; that nothing is left is found with the next scan, which is made when it is due.
    assert steady.do(ClaimChecks([channel], 10, LEASE)).next_due == {channel: steady.now + LEASE - 3_000}
    steady.wait(LEASE - 3_000)
    assert steady.do(ClaimChecks([channel], 10, LEASE)).next_due == {channel: None}


def test_claims_are_limited_oldest_first_and_none_is_left_behind(steady: Place) -> None:
    for number in range(7):
        steady.do(prepare(f"t{number}"))
        steady.wait(1)
    steady.wait(10_000)
    claimed = [claim(steady, limit=3) for _ in range(4)]
    assert claimed == [["t0", "t1", "t2"], ["t3", "t4", "t5"], ["t6"], []]


def test_every_group_url_host_and_database_has_a_line_of_its_own(steady: Place) -> None:
    steady.do(prepare("a", group="shop"))
    steady.do(prepare("b", group="bank"))
    for number, url in enumerate(["http://h:1/x", "http://h:1/y?q=1", "http://h:2/x", "https://h:1/x"]):
        steady.do(prepare(f"u{number}", check=Check("url", url)))
    steady.do(prepare("d", check=Check("database", "main")))
    steady.wait(10_000)
    lines = {(one.via, one.name): steady.claim(ClaimChecks([one.id], 10, LEASE)) for one in steady.store.channels()}
    assert lines == {
        ("group", "shop"): ["a"],
        ("group", "bank"): ["b"],
        ("url", "http://h:1"): ["u0", "u1"],
        ("url", "http://h:2"): ["u2"],
        ("url", "https://h:1"): ["u3"],
        ("database", "main"): ["d"],
    }


@pytest.mark.parametrize(("said", "values"), [("committed", ["t1"]), ("rolled_back", [])])
def test_an_answer_decides(steady: Place, said: Any, values: list[str]) -> None:
    steady.do(prepare("t1"))
    steady.wait(10_000)
    claim(steady)
    steady.do(AnswerChecks({"t1": said}))
    view = steady.view("t1")
    assert (view.state, view.resolved_by) == (said, "check")
    assert steady.values() == values
    assert steady.store.counts().pending == 0
    steady.wait(10**9)
    assert claim(steady) == []


def test_an_answer_after_the_outcome_changes_nothing(steady: Place) -> None:
    steady.do(prepare("t1"))
    steady.do(prepare("t2"))
    steady.wait(10_000)
    claim(steady)
    steady.do(Commit("t1"))
    steady.do(Rollback("t2"))
    steady.do(AnswerChecks({"t1": "rolled_back", "t2": "committed"}))
    steady.do(AnswerChecks({"t1": "unknown", "t2": "unknown", "stranger": "committed"}))
    steady.do(AnswerChecks({"t1": "committed", "t2": "rolled_back"}))
    assert steady.values() == ["t1"]
    assert [event.kind for event in steady.take_made().events] == ["conflict", "conflict"]
    steady.do(AnswerChecks({"t1": "rolled_back"}, group="shop", member="host-7"))
    (event,) = steady.take_made().events
    assert event.detail == "member host-7 of group shop answered rolled_back, the transaction is committed"
    assert steady.view("t1").resolved_by == "producer"
    assert steady.store.transaction("stranger") is None


def backlog(place: Place) -> dict[str, Any]:
    """Transactions in every state that an answer can meet, some in memory and some not; and an answer for each."""
    drawn = random.Random(7)
    answers: dict[str, Any] = {}
    for number in range(400):
        gid = f"t{drawn.randrange(16**6):06x}-{number}"
        sent = [message(f"{gid}/{one}", key=drawn.choice([None, "k"])) for one in range(drawn.randrange(3))]
        late = message(f"{gid}/late", delay_ms=50_000) if number % 11 == 0 else message(f"{gid}/now")
        called = [OutgoingCall("http://127.0.0.1:9/x")] if number % 7 == 0 else []
        place.do(Prepare(gid, "shop", [*sent, late], Check(max_checks=2), calls=called))
        answers[gid] = drawn.choice(["committed", "rolled_back", "unknown"])
        place.wait(20)
        if number == 200:
            place.wait(7_000)
            claimed = claim(place, limit=60)
            place.do(FailChecks(dict.fromkeys(claimed[:40], "nobody")))
            place.reopen()
    place.do(FailChecks(dict.fromkeys(list(answers)[:20], "nobody again")))
    for gid in list(answers)[300:320]:
        place.do(drawn.choice([Commit, Rollback])(gid))
    return {**answers, "stranger": "committed", "x" * 128: "rolled_back"}


def all_of(place: Place) -> list[object]:
    views = [
        place.store.transaction(gid)
        for gid in sorted(place.store.page(TableQuery("transactions", 9_999)).columns["gid"])
    ]
    events = sorted((event.kind, event.subject, event.detail) for event in place.take_made().events)
    tables = [place.store.page(TableQuery(table, 9_999)).columns for table in ("half", "delayed", "calls")]
    shown = [sorted(zip(*columns.values(), strict=True), key=repr) for columns in tables]
    return [views, events, place.values(), place.store.counts(), shown]


def test_many_answers_at_once_are_as_good_as_one_by_one(make_place: MakePlace) -> None:
    one, other = (
        make_place(checks=CheckDefaults(10_000, 5, Backoff(2_000, 8_000, jitter=0.0), "park", 10**9)) for _ in range(2)
    )
    answers = backlog(one)
    assert backlog(other) == answers
    one.do(AnswerChecks(answers))
    other.write(*(AnswerChecks({gid: said}) for gid, said in answers.items()))
    found = all_of(one)
    assert found == all_of(other)
    assert {view.state for view in found[0]} == {"committed", "rolled_back", "prepared", "parked"}  # type: ignore[attr-defined]
    assert len(found[1]) > 5  # type: ignore[arg-type]  # contradictions


def test_an_answer_decides_also_what_was_never_asked(steady: Place) -> None:
    steady.do(prepare("t1"))
    steady.do(AnswerChecks({"t1": "committed"}))
    assert steady.values() == ["t1"]


def test_unknown_counts_and_the_wait_doubles_up_to_its_cap(steady: Place) -> None:
    steady.do(prepare("t1", check=Check(max_checks=100)))
    steady.wait(10_000)
    waits = []
    for count in range(1, 6):
        assert claim(steady) == ["t1"]
        steady.do(AnswerChecks({"t1": "unknown"}, {"t1": "still running"}))
        view = steady.view("t1")
        assert (view.checks, view.last_error) == (count, "still running")
        waits.append(view.next_check_at - steady.now)
        steady.wait(waits[-1] - 1)
        assert claim(steady) == []
        steady.wait(1)
    assert waits == [2_000, 4_000, 8_000, 8_000, 8_000]


def test_the_wait_is_jittered_only_downwards(make_place: MakePlace) -> None:
    place = make_place(checks=CheckDefaults(0, 100, Backoff(1_000, 1_000, jitter=0.5)))
    for number in range(60):
        place.do(prepare(f"t{number}"))
    claim(place)
    place.do(AnswerChecks({f"t{number}": "unknown" for number in range(60)}))
    waits = {place.view(f"t{number}").next_check_at - place.now for number in range(60)}
    assert len(waits) > 20
    assert all(500 <= wait <= 1_000 for wait in waits)


def test_a_failure_that_will_not_mend_itself_waits_the_longest_at_once(steady: Place) -> None:
    steady.do(prepare("t1"))
    steady.wait(10_000)
    claim(steady)
    steady.do(FailChecks({"t1": "404"}, permanent=True))
    assert steady.view("t1").next_check_at == steady.now + 8_000
    assert steady.view("t1").checks == 1


def test_a_failure_to_ask_is_no_check(steady: Place) -> None:
    steady.do(prepare("t1"))
    steady.wait(10_000)
    for _ in range(20):
        assert claim(steady) == ["t1"]
        steady.do(FailChecks({"t1": "no live member"}, counted=False, retry_ms=50))
        view = steady.view("t1")
        assert (view.checks, view.last_error, view.next_check_at) == (0, "no live member", steady.now + 50)
        steady.wait(50)


def test_when_the_checks_are_used_up_the_transaction_is_parked_and_kept(steady: Place) -> None:
    steady.do(prepare("t1"))
    steady.wait(10_000)
    for number in range(5):
        assert claim(steady) == ["t1"]
        assert steady.view("t1").state == "prepared"
        steady.do(FailChecks({"t1": f"error {number}"}))
        steady.wait(8_000)
    view = steady.view("t1")
    assert (view.state, view.checks, view.last_error, view.next_check_at) == ("parked", 5, "error 4", 0)
    assert steady.store.counts().parked == 1
    assert steady.store.counts().pending == 1
    assert [(one.kind, one.subject) for one in steady.take_made().events] == [("parked", "t1")]
    steady.wait(10**10)
    assert claim(steady) == []
    steady.reopen()
    assert claim(steady) == []
    assert steady.view("t1").state == "parked"
    assert steady.values() == []


def parked(place: Place, *gids: str) -> None:
    for gid in gids:
        place.do(prepare(gid, check=Check(after_ms=0, max_checks=1)))
    claim(place)
    place.do(FailChecks(dict.fromkeys(gids, "gone")))
    assert place.store.counts().parked == len(gids)


def test_a_parked_transaction_can_still_be_decided_by_anyone(steady: Place) -> None:
    parked(steady, "p1", "p2", "p3", "p4")
    steady.do(Commit("p1"))
    steady.do(AnswerChecks({"p2": "committed"}))
    steady.do(OperatorResolve("p3", "rolled_back"))
    steady.do(Rollback("p4"))
    assert steady.values() == ["p1", "p2"]
    counts = steady.store.counts()
    assert (counts.pending, counts.parked, counts.oldest_pending_at) == (0, 0, None)
    assert steady.store.scan("parked", None, None, 10) == ([], None)


@pytest.mark.parametrize(
    "late",
    [
        AnswerChecks({"t1": "unknown"}),
        FailChecks({"t1": "late"}),
        FailChecks({"t1": "late"}, counted=False, retry_ms=0),
        ParkOld([1], 10),
    ],
)
def test_what_comes_late_leaves_a_parked_transaction_parked(steady: Place, late: Any) -> None:
    parked(steady, "t1")
    before = steady.view("t1")
    steady.wait(10**8)
    steady.do(late)
    assert steady.view("t1") == before
    assert steady.store.counts().parked == 1
    assert claim(steady) == []
    steady.do(Commit("t1"))
    assert steady.store.counts().parked == 0


def test_a_resumed_transaction_is_checked_from_the_beginning(steady: Place) -> None:
    parked(steady, "t1")
    steady.do(Resume("t1"))
    view = steady.view("t1")
    assert (view.state, view.checks, view.next_check_at) == ("prepared", 0, steady.now)
    assert steady.store.counts().parked == 0
    assert claim(steady) == ["t1"]
    assert steady.do(Resume("t1")).duplicate
    steady.do(AnswerChecks({"t1": "committed"}))
    assert steady.values() == ["t1"]
    assert steady.refused(Resume("t1")).error == "conflict"
    assert steady.refused(Resume("stranger")).error == "not_found"


def test_on_exhausted_rollback_decides_and_says_so(steady: Place) -> None:
    steady.do(prepare("t1", check=Check(after_ms=0, max_checks=2, on_exhausted="rollback")))
    for _ in range(2):
        assert claim(steady) == ["t1"]
        steady.do(FailChecks({"t1": "no answer"}))
        steady.wait(8_000)
    view = steady.view("t1")
    assert (view.state, view.resolved_by, view.checks) == ("rolled_back", "exhausted", 2)
    assert [event.kind for event in steady.take_made().events] == ["exhausted"]
    assert steady.refused(Commit("t1")).error == "outcome_conflict"
    assert steady.store.counts().pending == 0


def test_what_nobody_can_be_asked_about_is_parked_at_its_maximum_age(steady: Place) -> None:
    steady.do(prepare("old"))
    steady.wait(3_600_000)
    steady.do(prepare("young"))
    channel = steady.channel()
    assert steady.sweep(ParkOld([channel], 10)).done == 0
    steady.wait(20_000)
    assert steady.sweep(ParkOld([channel], 10)).done == 1
    assert steady.view("old").state == "parked"
    assert steady.view("young").state == "prepared"
    assert steady.view("old").last_error
    steady.do(Resume("old"))
    assert sorted(claim(steady)) == ["old", "young"]


def test_checks_survive_a_reopen_at_every_stage(steady: Place) -> None:
    for gid in ("fresh", "claimed", "failed", "parked"):
        steady.do(prepare(gid, check=Check(after_ms=0, max_checks=1 if gid == "parked" else 5)))
    steady.do(prepare("later"))
    steady.do(prepare("extra", group="bank", check=Check(after_ms=0)))
    assert claim(steady) == ["claimed", "failed", "fresh", "parked"]
    steady.do(FailChecks({"failed": "x", "parked": "y"}))
    steady.do(FailChecks({"fresh": "z"}, counted=False, retry_ms=0))
    before = {gid: steady.view(gid) for gid in ("fresh", "claimed", "failed", "parked", "later", "extra")}
    steady.reopen()
    assert {gid: steady.view(gid) for gid in before} == before
    assert claim(steady) == ["fresh"]
    assert claim(steady, "bank") == ["extra"]
    steady.wait(2_000)
    assert claim(steady) == ["failed"]
    steady.wait(8_000)
    assert claim(steady) == ["later"]
    steady.wait(10_000)
    assert claim(steady) == ["claimed", "fresh"]


def test_a_transaction_prepared_earlier_in_time_than_the_last_round_is_found(steady: Place) -> None:
    """A clock that is set back must not hide new transactions from the rounds."""
    steady.do(prepare("t1", check=Check(after_ms=0)))
    assert claim(steady) == ["t1"]
    steady.do(AnswerChecks({"t1": "committed"}))
    steady.wait(-3_600_000)
    steady.do(prepare("t2", check=Check(after_ms=100)))
    assert claim(steady) == []
    steady.wait(100)
    assert claim(steady) == ["t2"]
    steady.do(AnswerChecks({"t2": "unknown"}))
    assert steady.view("t2").checks == 1
    steady.wait(2_000)
    assert claim(steady) == ["t2"]


def test_what_a_clock_set_back_has_left_an_hour_ahead_is_claimed_now(steady: Place) -> None:
    """It is in line for a time that no check is put to: it dates from before the clock was set back."""
    steady.do(prepare("claimed", check=Check(after_ms=0)))
    assert claim(steady) == ["claimed"]
    steady.do(prepare("waiting", check=Check(after_ms=60_000)))
    steady.do(prepare("elsewhere", group="bank"))
    steady.wait(-3_600_000)
    steady.do(prepare("new", check=Check(after_ms=60_000)))
    assert claim(steady, limit=1) == ["claimed"]
    steady.reopen()
    assert claim(steady) == ["waiting"]
    assert claim(steady) == []
    assert claim(steady, "bank") == ["elsewhere"]
    steady.wait(60_000)
    assert sorted(claim(steady)) == ["claimed", "new", "waiting"]
    steady.do(AnswerChecks(dict.fromkeys(("claimed", "waiting", "elsewhere", "new"), "committed")))
    assert (steady.store.counts().pending, claim(steady)) == (0, [])


def test_resolving_in_the_unit_of_the_prepare(steady: Place) -> None:
    results = steady.write(prepare("t1", check=Check(after_ms=0)), Commit("t1"), prepare("t2"), Rollback("t2"))
    assert results == [None, None, None, None]
    assert claim(steady) == []
    assert steady.values() == ["t1"]
    assert steady.store.counts().pending == 0


def test_claim_and_answer_in_one_unit(steady: Place) -> None:
    steady.do(prepare("t1", check=Check(after_ms=0)))
    claimed, _ = steady.write(ClaimChecks([steady.channel()], 10, LEASE), AnswerChecks({"t1": "unknown"}))
    assert isinstance(claimed, Claimed)
    assert [one.request.gid for one in claimed.claims] == ["t1"]
    assert steady.view("t1").checks == 1
    assert claim(steady) == []
    steady.wait(2_000)
    assert claim(steady) == ["t1"]
