"""PyPI's dtmcli, unmodified, in a process of its own: messages with and without prepare, and what callers are told."""

from __future__ import annotations

import json
from importlib.metadata import version
from uuid import uuid4

import pytest
from dtmcli_bank import Bank, ask

from eventually import eventually

pytestmark = pytest.mark.mariadb


def new_gid() -> str:
    return f"dtmcli-{uuid4().hex}"


def test_it_is_the_release_that_everybody_installs() -> None:
    assert version("dtmcli") == "1.7.7.0"


def test_gen_gid_gives_ids_that_are_new_and_usable(bank: Bank) -> None:
    gids = bank.do("gen_gids", count=20).result
    assert len(set(gids)) == 20
    assert bank.do("submit", gid=gids[0]) == ("", "", None)
    bank.becomes(gids[0], "succeed")


def test_submit_without_prepare_calls_every_branch_once_in_order(bank: Bank) -> None:
    gid = new_gid()
    assert bank.do("submit", gid=gid, paths=["/in", "/in", "/out"]).raised == ""
    bank.becomes(gid, "succeed")
    assert [(one["path"], one["query"]["branch_id"]) for one in bank.seen(gid)] == [
        ("/in", "01"),
        ("/in", "02"),
        ("/out", "03"),
    ]
    assert bank.balances() == (0, 30)


def test_a_branch_is_called_as_dtm_calls_it(bank: Bank) -> None:
    gid = new_gid()
    bank.do("submit", gid=gid, branch_headers={"x-shop": "7"})
    bank.becomes(gid, "succeed")
    (called,) = bank.seen(gid)
    assert (called["method"], called["path"]) == ("POST", "/in")
    assert called["query"] == {"gid": gid, "trans_type": "msg", "branch_id": "01", "op": "action"}
    assert json.loads(called["body"]) == {"user": 2, "amount": 30}
    assert called["headers"]["content-type"] == "application/json"
    assert called["headers"]["x-shop"] == "7"


def test_prepare_and_submit(bank: Bank) -> None:
    gid = new_gid()
    assert bank.do("prepare_and_submit", gid=gid).raised == ""
    bank.becomes(gid, "succeed")
    assert [one["path"] for one in bank.seen(gid)] == ["/in"]
    assert bank.balances() == (0, 30)


def test_prepare_again_changes_nothing_and_nothing_is_called_before_the_submit(bank: Bank) -> None:
    gid = new_gid()
    assert bank.do("prepare", gid=gid, times=3).raised == ""
    assert bank.status(gid) == "prepared"
    assert bank.seen(gid) == []
    assert bank.do("submit", gid=gid).raised == ""
    bank.becomes(gid, "succeed")
    assert len(bank.seen(gid)) == 1


def test_a_prepare_without_a_check_back_is_refused(bank: Bank) -> None:
    gid = new_gid()
    assert bank.do("prepare", gid=gid, check=False).raised == "Exception"
    assert bank.status(gid) is None


def test_a_second_submit_of_a_finished_one_is_refused_and_runs_nothing(bank: Bank) -> None:
    gid = new_gid()
    bank.do("submit", gid=gid, wait=True)
    assert bank.status(gid) == "succeed"
    assert bank.do("submit", gid=gid).raised == "DTMFailureError"
    assert bank.do("prepare", gid=gid).raised == "DTMFailureError"
    assert len(bank.seen(gid)) == 1
    assert bank.balances() == (0, 30)


def test_a_second_submit_of_an_unfinished_one_runs_nothing_twice(bank: Bank) -> None:
    gid = new_gid()
    bank.plan(**{"in": ["lose"]})
    assert bank.do("submit", gid=gid, retry_interval=1).raised == ""
    eventually(lambda: len(bank.seen(gid)) >= 1)
    assert bank.do("submit", gid=gid, retry_interval=1, times=3).raised in ("", "DTMFailureError")
    bank.becomes(gid, "succeed")
    assert [one["status"] for one in bank.seen(gid)] == [500, 200]
    assert bank.balances() == (0, 30)


# --- wait_result -----------------------------------------------------------------------------------------------------


def test_with_wait_result_the_branches_have_run_when_submit_returns(bank: Bank) -> None:
    gid = new_gid()
    assert bank.do("submit", gid=gid, wait=True, paths=["/in", "/in"]).raised == ""
    assert bank.status(gid) == "succeed"
    assert bank.balances() == (0, 60)


@pytest.mark.parametrize(
    ("plan", "raised"), [("refuse", "DTMFailureError"), ("ongoing", "DTMFailureError"), ("break", "Exception")]
)
def test_with_wait_result_a_branch_that_does_not_succeed_is_told_and_tried_again(
    bank: Bank, plan: str, raised: str
) -> None:
    gid = new_gid()
    bank.plan(**{"in": [plan]})
    assert bank.do("submit", gid=gid, wait=True, retry_interval=1).raised == raised
    bank.becomes(gid, "succeed")
    assert [one["status"] for one in bank.seen(gid)][-1] == 200
    assert len(bank.seen(gid)) == 2
    assert bank.balances() == (0, 30)


def test_without_wait_result_a_branch_that_does_not_succeed_is_not_the_callers_business(bank: Bank) -> None:
    gid = new_gid()
    bank.plan(**{"in": ["refuse", "break", "ongoing"]})
    assert bank.do("submit", gid=gid, retry_interval=1).raised == ""
    bank.becomes(gid, "succeed")
    assert [one["status"] for one in bank.seen(gid)] == [409, 500, 425, 200]
    assert bank.balances() == (0, 30)


# --- branches that come again ----------------------------------------------------------------------------------------


def test_a_branch_whose_answer_was_lost_comes_again_and_its_barrier_keeps_it_from_counting_twice(bank: Bank) -> None:
    gid = new_gid()
    bank.plan(**{"in": ["lose", "lose"]})
    bank.do("submit", gid=gid, retry_interval=1)
    bank.becomes(gid, "succeed")
    assert len(bank.seen(gid)) == 3
    assert bank.balances() == (0, 30)
    assert bank.barriers(gid) == {(gid, "01", "action", "01", "action")}


def test_a_service_that_dies_after_its_commit_is_called_again_when_it_is_back(bank: Bank) -> None:
    gid = new_gid()
    bank.plan(**{"in": ["die"]})
    bank.do("submit", gid=gid, retry_interval=1)
    bank.wait_for_its_death()
    assert bank.balances() == (0, 30)
    assert bank.status(gid) == "submitted"
    bank.start()
    bank.becomes(gid, "succeed")
    assert len(bank.seen(gid)) == 1, "the call that the new service got"
    assert bank.balances() == (0, 30)


# --- what is not a message -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["saga", "tcc"])
def test_other_kinds_of_transactions_are_refused_clearly(bank: Bank, kind: str) -> None:
    gid = new_gid()
    told = bank.do(kind, gid=gid)
    assert told.raised == "Exception", "dtmcli's word for a status that is neither 200 nor 409"
    assert bank.seen(gid) == []
    assert bank.status(gid) is None
    for path in ("prepare", "submit"):
        status, answer = ask(bank.broker.port, "POST", f"/api/dtmsvr/{path}", {"gid": gid, "trans_type": kind})
        assert status >= 400
        assert kind in answer["message"]
        assert "msg" in answer["message"], "what this broker does understand"
