"""Two-phase messages over gRPC, as dtm's own tests of them see them, and what those leave out.

Branches and check-backs go to a real gRPC service; where a transaction stands is asked over HTTP, as dtm's users do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from brokers import BrokerProcess, running_broker
from busi_grpc import FAILURE, OK, OLD_ONGOING, ONGOING, Answer, Busi, busi_service
from dtm_grpc import GrpcClient, Refused
from tallystick.core.limits import MIB

SOON = {"TimeoutToFail": 1, "RetryInterval": 1}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(grpc=True, check_interval="300ms", check_interval_cap="1s") as running:
        yield running


@pytest.fixture(scope="module")
def busi() -> Iterator[Busi]:
    with busi_service() as running:
        yield running


@pytest.fixture
def dtm(broker: BrokerProcess) -> Iterator[GrpcClient]:
    with GrpcClient(broker) as client:
        yield client


def transfer(busi: Busi) -> list[tuple[str, bytes]]:
    return [(busi.url("TransOut"), b"\x08\x1e"), (busi.url("TransIn"), b"\x08\x1e")]


# --- dtm's msg_grpc_test.go -------------------------------------------------------------------------------------


def test_normal(dtm: GrpcClient, busi: Busi) -> None:
    gid = dtm.new_gid()
    dtm.submit(gid, transfer(busi))
    dtm.wait_status(gid, "succeed")
    assert dtm.branches(gid) == ["succeed", "succeed"]
    assert [(one.method, one.branch) for one in busi.calls(gid)] == [("TransOut", "01"), ("TransIn", "02")]


def test_timeout_success(dtm: GrpcClient, busi: Busi) -> None:
    gid, checked, called = dtm.new_gid(), threading.Event(), threading.Event()
    busi.answers("CanSubmit", ONGOING, Answer(after=checked))
    busi.answers("TransOut", ONGOING, Answer(after=called))
    dtm.prepare(gid, transfer(busi), busi.url("CanSubmit"), **SOON)
    busi.wait_for(gid, 2, "CanSubmit")
    assert (dtm.status(gid), dtm.branches(gid)) == ("prepared", ["prepared", "prepared"])
    checked.set()
    busi.wait_for(gid, 2, "TransOut")
    assert (dtm.status(gid), dtm.branches(gid)) == ("submitted", ["prepared", "prepared"])
    called.set()
    dtm.wait_status(gid, "succeed")
    assert dtm.branches(gid) == ["succeed", "succeed"]
    assert [one.method for one in busi.calls(gid)] == ["CanSubmit", "CanSubmit", "TransOut", "TransOut", "TransIn"]


def test_timeout_failed(dtm: GrpcClient, busi: Busi) -> None:
    gid, checked = dtm.new_gid(), threading.Event()
    busi.answers("CanSubmit", ONGOING, FAILURE._replace(after=checked))
    dtm.prepare(gid, transfer(busi), busi.url("CanSubmit"), **SOON)
    assert dtm.status(gid) == "prepared"
    busi.wait_for(gid, 2, "CanSubmit")
    assert dtm.status(gid) == "prepared"
    checked.set()
    dtm.wait_status(gid, "failed")
    assert dtm.branches(gid) == ["prepared", "prepared"]
    assert [one.method for one in busi.calls(gid)] == ["CanSubmit", "CanSubmit"]


# --- prepare, submit, abort -------------------------------------------------------------------------------------


def test_prepare_then_submit_calls_what_was_prepared(dtm: GrpcClient, busi: Busi) -> None:
    gid = dtm.new_gid()
    for _ in range(2):  # a repeated prepare is no error, and changes nothing
        dtm.prepare(gid, transfer(busi), busi.url("CanSubmit"))
    assert dtm.status(gid) == "prepared"
    dtm.submit(gid, transfer(busi), busi.url("CanSubmit"))
    dtm.wait_status(gid, "succeed")
    assert [one.method for one in busi.calls(gid)] == ["TransOut", "TransIn"]
    for again, words in ((dtm.prepare, "cannot prepare"), (dtm.submit, "cannot sumbmit")):
        with pytest.raises(Refused, match=rf"ABORTED: current status 'succeed', {words}\. FAILURE"):
            again(gid, transfer(busi), busi.url("CanSubmit"))


def test_a_repeated_submit_makes_no_call_twice(dtm: GrpcClient, busi: Busi) -> None:
    gid, slow = dtm.new_gid(), threading.Event()
    busi.answers("TransOut", Answer(after=slow))
    dtm.submit(gid, transfer(busi), RequestTimeout=10)
    busi.wait_for(gid, 1)
    for _ in range(3):
        dtm.submit(gid, transfer(busi), RequestTimeout=10)
    slow.set()
    dtm.wait_status(gid, "succeed")
    assert [one.method for one in busi.calls(gid)] == ["TransOut", "TransIn"]


def test_abort(dtm: GrpcClient, busi: Busi) -> None:
    gid = dtm.new_gid()
    dtm.prepare(gid, transfer(busi), busi.url("CanSubmit"), **SOON)
    dtm.abort(gid)
    assert (dtm.status(gid), dtm.branches(gid)) == ("failed", ["prepared", "prepared"])
    with pytest.raises(Refused, match=r"ABORTED: trans type: 'msg' current status 'failed', cannot abort\. FAILURE"):
        dtm.abort(gid)
    with pytest.raises(Refused, match=r"ABORTED: current status 'failed', cannot sumbmit\. FAILURE"):
        dtm.submit(gid, transfer(busi), busi.url("CanSubmit"))
    with pytest.raises(Refused, match="UNKNOWN: no TransGlobal with gid: unknown-to-all found"):
        dtm.abort("unknown-to-all")
    assert busi.calls(gid) == []


# --- the calls --------------------------------------------------------------------------------------------------


def test_a_branch_gets_its_bytes_and_dtms_metadata(dtm: GrpcClient, busi: Busi) -> None:
    gid, body = dtm.new_gid(), bytes(range(256))
    dtm.submit(gid, [(busi.url("TransIn"), body)], BranchHeaders={"X-Tenant": "seven"})
    (called,) = busi.wait_for(gid, 1)
    assert called.body == body
    wanted = {"dtm-gid": gid, "dtm-trans_type": "msg", "dtm-branch_id": "01", "dtm-op": "action", "dtm-dtm": ""}
    assert called.metadata.items() >= {**wanted, "x-tenant": "seven"}.items()


def test_a_check_back_gets_an_empty_body_and_dtms_metadata(dtm: GrpcClient, busi: Busi) -> None:
    gid = dtm.new_gid()
    dtm.prepare(gid, [(busi.url("TransIn"), b"x")], busi.url("CanSubmit"), **SOON, BranchHeaders={"x-tenant": "seven"})
    (called, *_) = busi.wait_for(gid, 1, "CanSubmit")
    assert called.body == b""
    wanted = {"dtm-gid": gid, "dtm-trans_type": "msg", "dtm-branch_id": "00", "dtm-op": "msg"}
    assert called.metadata.items() >= {**wanted, "x-tenant": "seven"}.items()
    dtm.wait_status(gid, "succeed")


@pytest.mark.parametrize("size", [0, 1, MIB])
def test_payloads_of_any_size_arrive_whole(dtm: GrpcClient, busi: Busi, size: int) -> None:
    gid, body = dtm.new_gid(), b"\xa5" * size
    dtm.submit(gid, [(busi.url("TransIn"), body)])
    (called,) = busi.wait_for(gid, 1)
    assert called.body == body


OTHERS = [
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ALREADY_EXISTS,
]
NOT_OK = [FAILURE, ONGOING, OLD_ONGOING, *(Answer(code, "out of order") for code in OTHERS)]


@pytest.mark.parametrize("answer", NOT_OK, ids=lambda one: f"{one.code.name} {one.text[:8]}")
def test_a_branch_that_does_not_succeed_is_called_again(dtm: GrpcClient, busi: Busi, answer: Answer) -> None:
    gid, again = dtm.new_gid(), threading.Event()
    busi.answers("TransOut", answer, Answer(after=again))
    dtm.submit(gid, transfer(busi), RetryInterval=1)
    busi.wait_for(gid, 2)
    assert (dtm.status(gid), dtm.branches(gid)) == ("submitted", ["prepared", "prepared"])
    again.set()
    dtm.wait_status(gid, "succeed")
    assert [one.method for one in busi.calls(gid)] == ["TransOut", "TransOut", "TransIn"]


@pytest.mark.parametrize("answer", NOT_OK[1:], ids=lambda one: f"{one.code.name} {one.text[:8]}")
def test_a_check_back_without_a_clear_answer_decides_nothing(dtm: GrpcClient, busi: Busi, answer: Answer) -> None:
    gid, again = dtm.new_gid(), threading.Event()
    busi.answers("CanSubmit", answer, FAILURE._replace(after=again))
    dtm.prepare(gid, transfer(busi), busi.url("CanSubmit"), **SOON)
    busi.wait_for(gid, 2, "CanSubmit")
    assert dtm.status(gid) == "prepared"
    again.set()
    dtm.wait_status(gid, "failed")
    assert [one.method for one in busi.calls(gid)] == ["CanSubmit", "CanSubmit"]


def test_a_service_that_is_away_is_called_when_it_is_back(dtm: GrpcClient) -> None:
    with busi_service() as busi:
        gid = dtm.new_gid()
        busi.stop()
        dtm.submit(gid, transfer(busi), RetryInterval=1)
        assert dtm.status(gid) == "submitted"
        busi.start()
        dtm.wait_status(gid, "succeed")
        assert [one.method for one in busi.calls(gid)] == ["TransOut", "TransIn"]


def test_delay(dtm: GrpcClient, busi: Busi) -> None:
    """The delay counts from the prepare, and comes with the submit as dtm's clients send it."""
    gid, began = dtm.new_gid(), time.monotonic()
    dtm.prepare(gid, transfer(busi), busi.url("CanSubmit"))
    dtm.submit(gid, transfer(busi), busi.url("CanSubmit"), '{"delay": 2}')
    assert (dtm.status(gid), dtm.branches(gid)) == ("submitted", ["prepared", "prepared"])
    dtm.wait_status(gid, "succeed")
    assert busi.calls(gid)[0].at - began >= 2


# --- wait_result ------------------------------------------------------------------------------------------------


def test_wait_result_returns_when_all_branches_have_succeeded(dtm: GrpcClient, busi: Busi) -> None:
    gid = dtm.new_gid()
    dtm.prepare(gid, transfer(busi), busi.url("CanSubmit"))
    dtm.submit(gid, transfer(busi), busi.url("CanSubmit"), WaitResult=True)
    assert [one.method for one in busi.calls(gid)] == ["TransOut", "TransIn"]
    assert dtm.status(gid) == "succeed"


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (FAILURE, "ABORTED", "no such account"),
        (ONGOING, "ABORTED", "wait result not return success"),
        (Answer(grpc.StatusCode.INTERNAL, "disk on fire"), "UNKNOWN", "disk on fire"),
    ],
)
def test_wait_result_tells_which_branch_did_not_succeed_and_why(
    dtm: GrpcClient, busi: Busi, answer: Answer, code: str, words: str
) -> None:
    gid = dtm.new_gid()
    busi.answers("TransIn", answer)
    with pytest.raises(Refused) as refused:
        dtm.submit(gid, transfer(busi), WaitResult=True, RetryInterval=1)
    assert refused.value.code == code
    assert words in refused.value.text
    assert f"branch 02 ({busi.url('TransIn')})" in refused.value.text
    dtm.wait_status(gid, "succeed")  # it is submitted all the same


def test_a_client_that_goes_away_while_it_waits_takes_nothing_with_it(dtm: GrpcClient, busi: Busi) -> None:
    gid, slow = dtm.new_gid(), threading.Event()
    busi.answers("TransOut", Answer(after=slow))
    with GrpcClient(dtm.broker) as hasty:
        hasty.seconds = 0.5
        with pytest.raises(Refused, match="DEADLINE_EXCEEDED"):
            hasty.submit(gid, transfer(busi), WaitResult=True, RequestTimeout=10)
    slow.set()
    dtm.wait_status(gid, "succeed")
    assert [one.method for one in busi.calls(gid)] == ["TransOut", "TransIn"]


def test_ok_is_ok_whatever_the_answer_holds(dtm: GrpcClient, busi: Busi) -> None:
    gid = dtm.new_gid()
    busi.answers("TransIn", OK)
    dtm.submit(gid, [(busi.url("TransIn"), b"FAILURE")], WaitResult=True)
    assert dtm.status(gid) == "succeed"
