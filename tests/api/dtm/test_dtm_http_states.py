"""What dtm answers in each state of a transaction, and what it does not test: repetitions, races, unknown gids."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from dtm_faces import SHORT, Face, HttpFace, Looker, Outcome, msg, new_name

from brokers import BrokerProcess, running_broker
from busi import ERROR, FAILURE, ONGOING, Busi, Reply
from eventually import eventually
from raw_client import RawClient


def _reach(state: str, gid: str, busi: Busi, face: Face, look: Looker) -> dict[str, Any]:
    """Bring a new transaction into a state; its branch fails until told otherwise, so that it stays `submitted`."""
    trans = msg(gid, busi, "/TransIn", timeout_to_fail=60, retry_interval=60)
    if state == "submitted":
        busi.script(gid, "01", ERROR)
    if state in ("prepared", "failed"):
        assert face.prepare(trans).ok
    if state in ("submitted", "succeed"):
        assert face.submit(trans).ok
        eventually(lambda: busi.calls(gid, "01"))
    if state == "failed":
        assert face.abort(trans).ok
    look.wait(gid, state)
    return trans


@pytest.mark.parametrize(
    ("state", "operation", "expected"),
    [
        ("prepared", "prepare", ""),
        ("submitted", "prepare", "current status 'submitted', cannot prepare. FAILURE"),
        ("succeed", "prepare", "current status 'succeed', cannot prepare. FAILURE"),
        ("failed", "prepare", "current status 'failed', cannot prepare. FAILURE"),
        ("prepared", "submit", ""),
        ("submitted", "submit", ""),
        ("succeed", "submit", "current status 'succeed', cannot sumbmit. FAILURE"),
        ("failed", "submit", "current status 'failed', cannot sumbmit. FAILURE"),
        ("prepared", "abort", ""),
        ("submitted", "abort", "trans type: 'msg' current status 'submitted', cannot abort. FAILURE"),
        ("succeed", "abort", "trans type: 'msg' current status 'succeed', cannot abort. FAILURE"),
        ("failed", "abort", "trans type: 'msg' current status 'failed', cannot abort. FAILURE"),
    ],
)
def test_an_operation_in_a_state(
    face: Face, look: Looker, busi: Busi, state: str, operation: str, expected: str
) -> None:
    gid = new_name("states")
    trans = _reach(state, gid, busi, face, look)
    outcome: Outcome = getattr(face, operation)(trans)
    assert outcome == Outcome(expected == "", expected != "", expected)


@pytest.mark.parametrize(
    ("state", "status", "expected"),
    [
        ("prepared", 200, ""),
        ("submitted", 200, ""),
        ("succeed", 409, "global transaction force stop error. status: succeed. error: FAILURE"),
        ("failed", 409, "global transaction force stop error. status: failed. error: FAILURE"),
    ],
)
def test_force_stop_in_a_state(
    http: HttpFace, look: Looker, busi: Busi, state: str, status: int, expected: str
) -> None:
    gid = new_name("stop")
    _reach(state, gid, busi, http, look)
    answer = look.post("forceStop", {"gid": gid})
    assert (answer.status, answer.json().get("message", "")) == (status, expected)
    assert look.status(gid) == ("succeed" if state == "succeed" else "failed")
    calls = len(busi.calls(gid))
    assert look.post("resetNextCronTime", {"gid": gid}).status == 200
    time.sleep(0.5)
    assert len(busi.calls(gid)) == calls


def test_unknown_gids(face: Face, look: Looker) -> None:
    gid = new_name("unknown")
    expected = f"no TransGlobal with gid: {gid} found"
    assert face.abort({"gid": gid, "trans_type": "msg"}) == Outcome(False, False, expected)
    for name in ("forceStop", "resetNextCronTime"):
        answer = look.post(name, {"gid": gid})
        assert (answer.status, answer.json()) == (500, {"message": expected})
    assert look.query(gid) == {"transaction": None, "branches": []}


def test_a_submit_that_is_repeated_while_branches_run_calls_nothing_twice(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("resubmit")
    trans = msg(gid, busi, concurrent=True)
    busi.script(gid, "01", type(ERROR)(hold=1.0))
    for _ in range(5):
        assert face.submit(trans).ok
    look.wait(gid, "succeed")
    assert sorted(call.branch for call in busi.calls(gid)) == ["01", "02"]


def test_the_branches_that_were_prepared_count_not_those_of_the_submit(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("differs")
    assert face.prepare(msg(gid, busi, "/stored")).ok
    assert face.prepare(msg(gid, busi, "/other")).ok  # as in dtm: what was stored first stands
    assert face.submit(msg(gid, busi, "/late", "/later")).ok
    look.wait(gid, "succeed")
    assert [call.path for call in busi.calls(gid)] == ["/stored"]


@pytest.mark.parametrize("named", [True, False])
def test_a_submit_finds_out_by_itself_whether_there_was_a_prepare(
    face: Face, look: Looker, busi: Busi, named: bool
) -> None:
    """A client may leave query_prepared out of the submit, or send it without having prepared."""
    gid = new_name("by-itself")
    submitted = msg(gid, busi, "/TransIn")
    if not named:
        assert face.prepare(submitted).ok
        submitted |= {"query_prepared": ""}
    assert face.submit(submitted).ok
    look.wait(gid, "succeed")
    assert len(busi.calls(gid, "01")) == 1


def test_a_submit_after_the_check_back_committed_is_told_the_truth(face: Face, look: Looker, busi: Busi) -> None:
    """dtm answers 409 (or `storage: NotFound` in the middle of it), though all is as the caller wanted it."""
    gid = new_name("late-submit")
    trans = msg(gid, busi, "/TransIn")
    assert face.prepare(trans).ok
    look.wait(gid, "succeed")
    assert face.submit(trans).ok
    assert len(busi.calls(gid, "01")) == 1


def test_a_submit_after_the_check_back_rolled_back_is_told_the_truth(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("late-submit-failed")
    busi.script(gid, "00", FAILURE)
    trans = msg(gid, busi, "/TransIn")
    assert face.prepare(trans).ok
    look.wait(gid, "failed")
    assert face.submit(trans) == Outcome(False, True, "current status 'failed', cannot sumbmit. FAILURE")
    assert busi.calls(gid, "01") == []


def test_submits_that_race_the_check_back_never_meet_a_storage_error(broker: BrokerProcess, busi: Busi) -> None:
    gids = [new_name("race") for _ in range(20)]
    with RawClient(broker.url) as one, RawClient(broker.url) as other:
        for gid in gids:
            assert HttpFace(one).prepare(msg(gid, busi, "/TransIn")).ok
        outcomes: list[Outcome] = []

        def submit(client: RawClient) -> None:
            face, deadline = HttpFace(client), time.monotonic() + 3
            while time.monotonic() < deadline:
                for gid in gids:
                    outcomes.append(face.submit(msg(gid, busi, "/TransIn")))

        time.sleep(0.9)  # the check-backs are due at 1 s
        threads = [threading.Thread(target=submit, args=(client,)) for client in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for gid in gids:
            Looker(one).wait(gid, "succeed")
    assert {outcome.message for outcome in outcomes} <= {"", "current status 'succeed', cannot sumbmit. FAILURE"}
    assert all(len(busi.calls(gid, "01")) == 1 for gid in gids)


def test_a_prepare_without_a_check_back_is_refused(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("unchecked")
    outcome = face.prepare(msg(gid, busi, query_prepared=""))
    assert (outcome.ok, outcome.failure) == (False, False)
    assert outcome.message.startswith("query_prepared: ")
    assert "allow_unchecked" in outcome.message
    assert look.status(gid) is None


def test_a_broker_that_allows_it_commits_without_a_check_back_as_dtm_does(busi: Busi) -> None:
    with running_broker(allow_unchecked=True, **SHORT) as broker, RawClient(broker.url) as client:
        gid, look = new_name("unchecked"), Looker(client)
        assert HttpFace(client).prepare(msg(gid, busi, "/TransIn", query_prepared=None)).ok
        assert look.status(gid) == "prepared"
        look.wait(gid, "succeed")
        assert [call.branch for call in busi.calls(gid)] == ["01"]


def test_a_check_back_that_is_no_success_by_the_rule_of_dtm_never_commits(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("unclear")
    replies = [Reply(201), Reply(204), Reply(404), Reply(500), ONGOING]
    busi.script(gid, "00", *replies, FAILURE)
    assert face.prepare(msg(gid, busi, "/TransIn")).ok
    look.wait(gid, "failed")
    assert busi.calls(gid, "01") == []


def test_a_transaction_survives_a_killed_broker_in_each_state(busi: Busi) -> None:
    with running_broker(**SHORT) as broker, RawClient(broker.url) as client:
        face, look = HttpFace(client), Looker(client)
        waits, runs = new_name("killed-prepared"), new_name("killed-submitted")
        assert face.prepare(msg(waits, busi, "/TransIn", timeout_to_fail=3)).ok
        busi.script(runs, "01", ERROR)
        assert face.submit(msg(runs, busi, "/TransIn", retry_interval=2)).ok
        eventually(lambda: busi.calls(runs, "01"))
        broker.kill()
        broker.restart()
        client.close()
        look.wait(waits, "succeed")
        look.wait(runs, "succeed")
        assert busi.calls(waits, "01")
        assert len(busi.calls(runs, "01")) >= 2


@pytest.mark.parametrize("state", ["prepared", "submitted", "succeed"])
@pytest.mark.parametrize("check", [True, False])
def test_a_native_transaction_is_not_submitted(
    face: Face, look: Looker, client: RawClient, busi: Busi, state: str, check: bool
) -> None:
    """Its commit is not this caller's, and the steps of the request would be lost."""
    gid = new_name("native")
    calls = [{"url": f"{busi.url}/TransIn", "body": "{}"}]
    body = {"gid": gid, "group": "shop", "calls": calls, "check": {"after_ms": 600_000}}
    assert client.json("POST", "/v1/transactions", body).status == 201
    if state != "prepared":
        busi.script(gid, "01", *[ERROR] * 100 * (state == "submitted"))
        assert client.json("POST", f"/v1/transactions/{gid}/commit", {}).status == 200
        look.wait(gid, state)
    trans = msg(gid, busi)
    if not check:
        del trans["query_prepared"]
    outcome = face.submit(trans)
    assert (outcome.ok, outcome.failure) == (False, False)
    assert outcome.message.startswith("gid: belongs to a transaction that did not come through this API (got ")
    assert look.status(gid) == state
    assert "/TransOut" not in [call.path for call in busi.calls(gid)]


def test_an_abort_rolls_a_native_transaction_back_and_a_prepare_of_it_is_refused(
    face: Face, look: Looker, client: RawClient, busi: Busi
) -> None:
    """As the reference says: the group protects it from a submit only."""
    gid = new_name("native")
    calls = [{"url": f"{busi.url}/TransIn", "body": "{}"}]
    body = {"gid": gid, "group": "shop", "calls": calls, "check": {"after_ms": 600_000}}
    assert client.json("POST", "/v1/transactions", body).status == 201
    trans = msg(gid, busi)
    outcome = face.prepare(trans)
    assert (outcome.ok, outcome.failure) == (False, False)
    assert face.abort(trans).ok
    assert look.status(gid) == "failed"
    assert face.prepare(trans).failure
