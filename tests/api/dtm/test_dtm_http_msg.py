"""dtm's own tests of a msg (msg_test, msg_options_test, msg_delay_test, msg_jrpc_test), against a real broker and a
real branch service, over HTTP and over JSON-RPC. Where dtm moves its clock and its timer by hand, the waits are short
here and the test waits for what must follow."""

from __future__ import annotations

import time

import pytest
from dtm_faces import Face, Looker, jrpc_msg, msg, new_name

from busi import ERROR, FAILURE, ONGOING, Busi
from eventually import eventually

# --- msg_test ----------------------------------------------------------------------------------------------------


def test_a_submitted_msg_calls_a_branch_and_each_subscriber_of_a_topic(face: Face, look: Looker, busi: Busi) -> None:
    gid, topic = new_name("TestMsgNormal"), new_name("http_trans")
    look.subscribe(topic, f"{busi.url}/TransOut", "out")
    look.subscribe(topic, f"{busi.url}/TransIn", "in")
    busi.script(gid, "01", ONGOING)  # held up once, so that what comes between can be seen
    assert face.submit(msg(gid, busi, "/SagaB", f"topic://{topic}")).ok
    assert look.status(gid) == "submitted"
    look.wait(gid, "succeed")
    assert look.branches(gid) == {"01": "succeed", "02-01": "succeed", "02-02": "succeed"}
    paths = [(call.branch, call.path) for call in busi.calls(gid)]
    assert paths == [("01", "/SagaB"), ("01", "/SagaB"), ("02-01", "/TransOut"), ("02-02", "/TransIn")]


def test_a_prepared_msg_that_is_never_submitted_goes_on_when_the_check_back_says_so(
    face: Face, look: Looker, busi: Busi
) -> None:
    gid = new_name("TestMsgTimeoutSuccess")
    busi.script(gid, "00", ONGOING)
    busi.script(gid, "01", ONGOING)
    assert face.prepare(msg(gid, busi)).ok
    eventually(lambda: busi.calls(gid, "00"))
    assert look.status(gid) == "prepared"
    eventually(lambda: len(busi.calls(gid, "01")) == 1)
    assert look.status(gid) == "submitted"
    look.wait(gid, "succeed")
    assert look.branches(gid) == {"01": "succeed", "02": "succeed"}
    assert [call.branch for call in busi.calls(gid)] == ["00", "00", "01", "01", "02"]


def test_a_check_back_that_says_failure_ends_the_msg_without_a_call(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("TestMsgTimeoutFailed")
    busi.script(gid, "00", ONGOING, FAILURE)
    assert face.prepare(msg(gid, busi)).ok
    eventually(lambda: busi.calls(gid, "00"))
    assert look.status(gid) == "prepared"
    look.wait(gid, "failed")
    assert look.branches(gid) == {"01": "prepared", "02": "prepared"}
    assert [call.branch for call in busi.calls(gid)] == ["00", "00"]


def test_prepare_twice_and_submit_are_fine_and_prepare_afterwards_is_not(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("TestMsgAbnormal")
    trans = msg(gid, busi)
    assert face.prepare(trans).ok
    assert face.prepare(trans).ok
    assert face.submit(trans).ok
    look.wait(gid, "succeed")
    late = face.prepare(trans)
    assert (late.failure, late.message) == (True, "current status 'succeed', cannot prepare. FAILURE")


@pytest.mark.parametrize("operation", ["prepare", "submit"])
def test_a_topic_that_does_not_exist_is_told(face: Face, look: Looker, busi: Busi, operation: str) -> None:
    gid = new_name("TestMsgTopicNotFoundFailed")
    outcome = getattr(face, operation)(msg(gid, busi, f"topic://{new_name('nobody')}"))
    assert (outcome.ok, outcome.failure, outcome.message) == (False, False, "topic not found")
    assert look.query(gid) == {"transaction": None, "branches": []}


# --- msg_options_test --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "waits"), [(1, 1.0), (2, 2.0)])
def test_the_check_back_waits_for_timeout_to_fail(
    face: Face, look: Looker, busi: Busi, seconds: int, waits: float
) -> None:
    gid = new_name("TestMsgOptionsTimeout")
    before = time.time()
    assert face.prepare(msg(gid, busi, timeout_to_fail=seconds)).ok
    look.wait(gid, "succeed")
    assert busi.calls(gid, "00")[0].at - before >= waits


def test_the_default_timeout_is_dtms(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("TestMsgOptionsTimeoutDefault")
    before = time.time()
    assert face.prepare(msg(gid, busi, timeout_to_fail=0)).ok
    found = look.query(gid)["transaction"]
    # Rounded up: 35 within the first second after the prepare.
    passed = time.time() - before
    assert 35 - passed <= found["next_cron_interval"] <= 35
    assert found["status"] == "prepared"
    assert face.abort({"gid": gid, "trans_type": "msg"}).ok


def test_a_custom_timeout_may_end_in_failure(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("TestMsgOptionsTimeoutFailed")
    busi.script(gid, "00", FAILURE)
    before = time.time()
    assert face.prepare(msg(gid, busi, timeout_to_fail=2)).ok
    look.wait(gid, "failed")
    assert busi.calls(gid, "00")[0].at >= before + 2
    assert busi.calls(gid, "01") == []


def test_concurrent_branches_do_not_wait_for_each_other(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("TestMsgConcurrent")
    busi.script(gid, "01", ERROR)
    assert face.submit(msg(gid, busi, concurrent=True)).ok
    eventually(lambda: busi.calls(gid, "02"))
    look.wait(gid, "succeed")
    assert look.branches(gid) == {"01": "succeed", "02": "succeed"}
    assert look.query(gid)["transaction"]["concurrent"] is True
    first_of_two, second_of_one = busi.calls(gid, "02")[0].at, busi.calls(gid, "01")[1].at
    assert first_of_two < second_of_one


def test_branches_in_order_wait_for_the_one_before(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("TestMsgOrdered")
    busi.script(gid, "01", ERROR)
    assert face.submit(msg(gid, busi)).ok
    look.wait(gid, "succeed")
    assert [call.branch for call in busi.calls(gid)] == ["01", "01", "02"]


def test_headers_and_request_timeout_reach_branches_and_check_back(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("headers")
    headers = {"X-Tenant": "blue", "Content-Type": "text/plain"}
    assert face.prepare(msg(gid, busi, branch_headers=headers, request_timeout=7)).ok
    look.wait(gid, "succeed")
    for call in busi.calls(gid):
        assert call.headers["x-tenant"] == "blue"
    assert {call.headers["content-type"] for call in busi.calls(gid, "01")} == {"text/plain"}


def test_a_branch_that_takes_longer_than_request_timeout_is_called_again(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("slow")
    busi.script(gid, "01", type(ERROR)(hold=2.0))
    assert face.submit(msg(gid, busi, request_timeout=1)).ok
    look.wait(gid, "succeed")
    assert len(busi.calls(gid, "01")) == 2


# --- msg_delay_test ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepared", [False, True])
def test_delayed_branches_are_called_when_their_time_has_come(
    face: Face, look: Looker, busi: Busi, prepared: bool
) -> None:
    """As dtm's clients do it: custom_data comes with the submit only."""
    gid = new_name("TestMsgDelayNormal")
    before = time.time()
    if prepared:
        assert face.prepare(msg(gid, busi, timeout_to_fail=30)).ok
    assert face.submit(msg(gid, busi, custom_data='{"delay":2}')).ok
    look.wait(gid, "succeed")
    assert busi.calls(gid, "01")[0].at >= before + 2


def test_a_delay_that_was_prepared_holds_after_the_check_back(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("delay-prepared")
    before = time.time()
    assert face.prepare(msg(gid, busi, custom_data='{"Delay":3}')).ok
    look.wait(gid, "submitted")
    assert busi.calls(gid, "01") == []
    look.wait(gid, "succeed")
    assert busi.calls(gid, "01")[0].at >= before + 3


# --- msg_jrpc_test -----------------------------------------------------------------------------------------------


def test_branches_by_json_rpc(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("TestMsgJrpcNormal")
    assert face.submit(jrpc_msg(gid, busi)).ok
    look.wait(gid, "succeed")
    first, second = busi.calls(gid)
    assert (first.envelope or {})["method"] == "TransOut"
    assert (second.envelope or {})["method"] == "TransIn"
    expected = {"amount": 30, "branch": 0, "gid": gid, "trans_type": "msg", "branch_id": "01", "op": "action"}
    assert (first.envelope or {})["params"] == expected


@pytest.mark.parametrize("answer", [ERROR, ONGOING, FAILURE], ids=["OTHER", "ONGOING", "FAILURE"])
@pytest.mark.parametrize("made", [msg, jrpc_msg], ids=["http-branch", "json-rpc-branch"])
def test_whatever_a_branch_says_but_success_keeps_the_msg_submitted(
    face: Face, look: Looker, busi: Busi, answer: type, made: type
) -> None:
    gid = new_name("TestMsgJrpcResults")
    busi.script(gid, "02", answer)
    assert face.submit(made(gid, busi)).ok
    eventually(lambda: busi.calls(gid, "02"))
    eventually(lambda: look.query(gid)["branches"][1].get("attempts"))
    assert look.status(gid) == "submitted"
    assert look.branches(gid) == {"01": "succeed", "02": "prepared"}
    look.wait(gid, "succeed")


def test_do_and_submit(face: Face, look: Looker, busi: Busi) -> None:
    """What a client's DoAndSubmit asks of the server when the local transaction commits."""
    gid = face.new_gid()
    trans = jrpc_msg(gid, busi)
    assert face.prepare(trans).ok
    assert look.status(gid) == "prepared"
    assert face.submit(trans).ok
    look.wait(gid, "succeed")
    assert busi.calls(gid, "00") == []


def test_do_and_submit_whose_business_failed(face: Face, look: Looker, busi: Busi) -> None:
    gid = face.new_gid()
    trans = jrpc_msg(gid, busi)
    assert face.prepare(trans).ok
    assert face.abort(trans).ok
    assert look.status(gid) == "failed"
    time.sleep(1.5)
    assert busi.calls(gid) == []


def test_submit_after_the_end_is_refused(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("TestMsgJrpcRepeated")
    trans = jrpc_msg(gid, busi)
    assert face.submit(trans).ok
    look.wait(gid, "succeed")
    again = face.submit(trans)
    assert (again.failure, again.message) == (True, "current status 'succeed', cannot sumbmit. FAILURE")
    assert len(busi.calls(gid)) == 2
