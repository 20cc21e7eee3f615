"""`wait_result`, and what each answer of a branch means."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from dtm_faces import SHORT, Face, HttpFace, Looker, jrpc_msg, msg, new_name

from brokers import running_broker
from busi import ERROR, FAILURE, ONGOING, SUCCESS, Busi, Reply
from raw_client import RawClient


def test_the_answer_comes_when_every_branch_has_succeeded(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("wait")
    busi.script(gid, "01", Reply(hold=0.5))
    busi.script(gid, "02", Reply(hold=0.5))
    before = time.monotonic()
    assert face.submit(msg(gid, busi, wait_result=True)).ok
    assert time.monotonic() - before >= 1.0
    assert look.status(gid) == "succeed"


@pytest.mark.parametrize(
    ("reply", "failure", "why"),
    [
        (ERROR, False, "status 500: something broke"),
        (FAILURE, True, 'status 409: {"dtm_result":"FAILURE"}'),
        (ONGOING, True, "answered ONGOING"),
        (Reply(200, '{"dtm_result":"FAILURE"}'), True, "FAILURE"),
    ],
    ids=["error", "failure", "ongoing", "failure-in-a-200"],
)
def test_a_branch_that_did_not_succeed_is_named_with_its_reason(
    face: Face, look: Looker, busi: Busi, reply: Reply, failure: bool, why: str
) -> None:
    gid = new_name("wait")
    busi.script(gid, "02", reply)
    outcome = face.submit(msg(gid, busi, wait_result=True, retry_interval=3))
    assert (outcome.ok, outcome.failure) == (False, failure)
    assert f"branch 02 ({busi.url}/TransIn)" in outcome.message
    assert why in outcome.message
    assert look.status(gid) == "submitted"  # a msg has no way back: it goes on
    look.wait(gid, "succeed")


def test_branches_by_json_rpc_are_told_apart_as_well(face: Face, busi: Busi) -> None:
    for reply, failure in ((ERROR, False), (FAILURE, True), (ONGOING, True)):
        gid = new_name("wait")
        busi.script(gid, "01", reply)
        outcome = face.submit(jrpc_msg(gid, busi, wait_result=True))
        assert (outcome.ok, outcome.failure) == (False, failure)


def test_concurrent_branches_are_waited_for_together(face: Face, busi: Busi) -> None:
    gid = new_name("wait")
    paths = [f"/{number}" for number in range(5)]
    for number in range(5):
        busi.script(gid, f"{number + 1:02d}", Reply(hold=2.0))
    before = time.monotonic()
    assert face.submit(msg(gid, busi, *paths, wait_result=True, concurrent=True)).ok
    assert 2.0 <= time.monotonic() - before < 10.0


def test_a_service_that_does_not_answer_ends_the_wait_in_its_time(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("wait")
    busi.script(gid, "01", Reply(hold=3.0))
    outcome = face.submit(msg(gid, busi, wait_result=True, request_timeout=1))
    assert not outcome.ok
    assert "branch 01" in outcome.message
    assert "no answer within 1 s" in outcome.message
    assert look.status(gid) == "submitted"


def test_a_service_that_is_not_there_is_named(face: Face, busi: Busi) -> None:
    outcome = face.submit(msg(new_name("wait"), busi, "http://127.0.0.1:9/gone", wait_result=True))
    assert not outcome.ok
    assert "branch 01 (http://127.0.0.1:9/gone)" in outcome.message


@pytest.fixture
def slow_probes() -> Iterator[HttpFace]:
    """A broker that tries a host that is down only once a minute."""
    probes = {"call_probe": "60s", "call_probe_cap": "60s"}
    with running_broker(**SHORT | probes) as broker, RawClient(broker.url, timeout=150.0) as client:
        yield HttpFace(client)


def test_a_host_that_is_down_is_not_waited_for(slow_probes: HttpFace, busi: Busi) -> None:
    """Clients of dtm give up after `request_timeout`. The broker knows the host, so its answer comes before."""
    gone = "http://127.0.0.1:9/gone"
    before = time.monotonic()
    # The circuit opens while this one waits: some of its branches were called, and the others were not.
    outcome = slow_probes.submit(
        msg(new_name("wait"), busi, *[gone] * 40, wait_result=True, concurrent=True, request_timeout=60)
    )
    assert (outcome.ok, outcome.failure) == (False, False)
    for concurrent in (False, True):
        outcome = slow_probes.submit(
            msg(new_name("wait"), busi, "/TransOut", gone, wait_result=True, concurrent=concurrent, request_timeout=60)
        )
        assert (outcome.ok, outcome.failure) == (False, True)
        assert f"branch 02 ({gone}) was not called yet, because its host does not answer" in outcome.message
    assert time.monotonic() - before < 40.0


def test_a_delayed_msg_is_not_waited_for(face: Face, look: Looker, busi: Busi) -> None:
    """As in dtm: what is to come later has not succeeded. The transaction is submitted nevertheless."""
    gid = new_name("wait")
    outcome = face.submit(msg(gid, busi, wait_result=True, custom_data='{"delay":2}', request_timeout=1))
    assert (outcome.ok, outcome.failure) == (False, True)
    assert outcome.message.startswith("wait result not return success: branch 01")
    look.wait(gid, "succeed")


def test_a_prepared_msg_is_waited_for_and_a_repetition_waits_for_the_same(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("wait")
    trans = msg(gid, busi, wait_result=True)
    busi.script(gid, "01", ERROR)
    assert face.prepare(trans).ok
    assert not face.submit(trans).ok
    look.wait(gid, "succeed")
    assert [call.branch for call in busi.calls(gid)] == ["01", "01", "02"]


def test_a_msg_without_branches_has_nothing_to_wait_for(face: Face) -> None:
    assert face.submit({"gid": new_name("wait"), "trans_type": "msg", "wait_result": True}).ok


# --- what an answer means ----------------------------------------------------------------------------------------

DONE = [
    Reply(200, '{"dtm_result":"SUCCESS"}'),
    Reply(200, ""),
    Reply(200, "null"),
    Reply(200, '{"balance": 3, "note": "a failure in lower case"}'),
    Reply(200, "<html>Please log in</html>"),
]
AGAIN = [
    Reply(200, '{"dtm_result":"FAILURE"}'),
    Reply(200, '{"dtm_result":"ONGOING"}'),
    Reply(200, "FAILURE"),
    Reply(200, "ONGOING"),
    Reply(200, '{"balance": 3, "note": "no FAILURE here"}'),
    Reply(200, "text that mentions FAILURE and ONGOING"),
    Reply(201, "made"),
    Reply(202, ""),
    Reply(204, ""),
    Reply(301, "", headers=(("Location", "/elsewhere"),)),
    Reply(302, "", headers=(("Location", "/elsewhere"),)),
    Reply(304, ""),
    Reply(400, '{"dtm_result":"SUCCESS"}'),
    Reply(404, "not found"),
    Reply(409, '{"dtm_result":"SUCCESS"}'),
    Reply(425, ""),
    Reply(429, "slow down"),
    Reply(500, '{"dtm_result":"SUCCESS"}'),
    Reply(502, ""),
    Reply(503, ""),
]


@pytest.mark.parametrize("protocol", ["http", "json-rpc"])
def test_an_answer_that_was_cut_is_no_success(http: HttpFace, look: Looker, busi: Busi, protocol: str) -> None:
    """FAILURE may stand behind the limit."""
    gid = new_name("cut")
    text = json.dumps({"text": "x" * 65_536 + "FAILURE"})
    busi.script(gid, "01", Reply(200, text, bare=True), SUCCESS)
    trans = (jrpc_msg if protocol == "json-rpc" else msg)(gid, busi, "/TransIn", wait_result=True)
    outcome = http.submit(trans)
    assert (outcome.ok, outcome.failure) == (False, False)
    assert "the answer was cut at the limit of 65536 bytes" in outcome.message
    look.wait(gid, "succeed")
    assert len(busi.calls(gid, "01")) == 2


def _name(reply: Reply) -> str:
    return f"{reply.status}-{reply.body[:24]}"


@pytest.mark.parametrize("reply", DONE, ids=_name)
def test_an_answer_that_ends_a_branch(http: HttpFace, look: Looker, busi: Busi, reply: Reply) -> None:
    gid = new_name("done")
    busi.script(gid, "01", reply, ERROR)
    assert http.submit(msg(gid, busi, "/TransIn", wait_result=True)).ok
    assert look.status(gid) == "succeed"
    assert len(busi.calls(gid)) == 1


@pytest.mark.parametrize("reply", AGAIN, ids=_name)
def test_an_answer_after_which_a_branch_is_called_again(http: HttpFace, look: Looker, busi: Busi, reply: Reply) -> None:
    gid = new_name("again")
    busi.script(gid, "01", reply, SUCCESS)
    outcome = http.submit(msg(gid, busi, "/TransIn", wait_result=True))
    assert not outcome.ok
    assert outcome.failure == (reply.status in (409, 425) or "FAILURE" in reply.body or "ONGOING" in reply.body)
    look.wait(gid, "succeed")
    assert [call.path for call in busi.calls(gid)] == ["/TransIn", "/TransIn"]  # nothing went to a redirect's place
