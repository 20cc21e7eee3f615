"""Answers as dtm's Go helper `Result2HttpJSON` gives them: understood for what came through dtm's interfaces only."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dtm_faces import BASE, Face, Looker, jrpc_msg, msg, new_name

from brokers import BrokerProcess
from busi import ONGOING, SUCCESS, Busi, Called, Reply, running_busi
from eventually import eventually
from raw_client import RawClient

# What `Result2HttpJSON` makes of nil, ErrFailure and ErrOngoing.
NULL = Reply(200, "null", bare=True)
GO_FAILURE = Reply(409, '{"error":"FAILURE"}', bare=True)
GO_ONGOING = Reply(425, '{"error":"ONGOING"}', bare=True)
OF_HELPER = {"committed": NULL, "rolled_back": GO_FAILURE}
IN_ENVELOPE = {
    "committed": Reply(200, '{"jsonrpc":"2.0","id":"1","error":null,"result":null}'),
    "rolled_back": Reply(200, '{"jsonrpc":"2.0","id":"1","error":{"code":-32901,"message":"it is gone"}}'),
}
STATUS = {"committed": "succeed", "rolled_back": "failed"}


# --- producers that are killed -----------------------------------------------------------------------------------

PRODUCER = """
import json, os, signal, sqlite3, sys, urllib.request
url, body, database, outcome = sys.argv[1:]
request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=60) as answer:
    answered = json.load(answer)
assert answered.get("dtm_result") == "SUCCESS" or answered.get("error", "none") is None, answered
with sqlite3.connect(database) as bank:
    bank.execute("insert into done values (?)", (json.loads(body).get("gid") or json.loads(body)["params"]["gid"],))
    if outcome == "rolled_back":
        os.kill(os.getpid(), signal.SIGKILL)
bank.close()
os.kill(os.getpid(), signal.SIGKILL)
"""


class Ledger:
    """The producer's database, and the check-back that reads it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        bank = sqlite3.connect(self.path)
        bank.execute("create table done (gid text)")
        bank.close()

    def check_back(self, replies: dict[str, Reply], called: Called) -> Reply:
        if called.branch != "00":
            return SUCCESS
        bank = sqlite3.connect(self.path, timeout=20)
        try:
            found = bank.execute("select 1 from done where gid = ?", (called.gid,)).fetchone()
        finally:
            bank.close()
        return replies["committed" if found else "rolled_back"]


@pytest.fixture
def shop() -> Iterator[Busi]:
    with running_busi() as running:
        yield running


@pytest.mark.parametrize("replies", [OF_HELPER, IN_ENVELOPE], ids=["helper", "envelope"])
@pytest.mark.parametrize("protocol", ["http", "json-rpc"])
@pytest.mark.parametrize("outcome", ["committed", "rolled_back"])
def test_the_check_back_of_a_killed_producer_is_understood(
    broker: BrokerProcess,
    look: Looker,
    shop: Busi,
    tmp_path: Path,
    protocol: str,
    replies: dict[str, Reply],
    outcome: str,
) -> None:
    ledger = Ledger(tmp_path / "bank.db")
    shop.default = lambda called: ledger.check_back(replies, called)
    gid = new_name("killed")
    trans: dict[str, Any] = (jrpc_msg if protocol == "json-rpc" else msg)(gid, shop)
    url, body = f"{broker.url}{BASE}/prepare", trans
    if protocol == "json-rpc":
        url = f"{broker.url}/api/json-rpc"
        body = {"jsonrpc": "2.0", "id": "1", "method": "prepare", "params": trans}
    command = [sys.executable, "-c", PRODUCER, url, json.dumps(body), ledger.path, outcome]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == -9, done.stderr
    look.wait(gid, STATUS[outcome])
    expected = ["01", "02"] if outcome == "committed" else []
    assert [call.branch for call in shop.calls(gid) if call.branch != "00"] == expected


# --- check-backs -------------------------------------------------------------------------------------------------


def test_any_200_commits_as_in_dtm_and_a_word_in_the_body_does_not(face: Face, look: Looker, busi: Busi) -> None:
    expected: dict[str, str] = {}
    for reply, status in (
        (Reply(200, ""), "succeed"),
        (Reply(200, "<html>Please log in</html>"), "succeed"),
        (Reply(200, "the answer is FAILURE"), "failed"),
        (Reply(500, '{"error":"reason: FAILURE"}'), "failed"),
    ):
        gid = new_name("rule")
        expected[gid] = status
        busi.script(gid, "00", GO_ONGOING, Reply(500, '{"error":"no database"}'), reply)
        assert face.prepare(msg(gid, busi, "/TransIn")).ok
    for gid, status in expected.items():
        look.wait(gid, status)
        assert len(busi.calls(gid, "00")) == 3


def test_a_transaction_without_steps_is_understood_as_well(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("empty")
    busi.script(gid, "00", NULL)
    assert face.prepare({**msg(gid, busi), "steps": [], "payloads": []}).ok
    look.wait(gid, "succeed")
    assert len(busi.calls(gid, "00")) == 1


@pytest.mark.parametrize("group", ["shop", "dtm"])
def test_a_native_transaction_stays_strict(client: RawClient, busi: Busi, group: str) -> None:
    """Also one whose group has the name that dtm's interfaces use."""
    gid = new_name("native")
    busi.script(gid, "00", NULL, Reply(200, ""), GO_FAILURE, Reply(200, '{"outcome":"committed"}'))
    calls = [{"url": f"{busi.url}/TransIn", "body": "{}"}]
    check = {"via": "url", "target": f"{busi.url}/QueryPrepared", "after_ms": 100}
    body = {"gid": gid, "group": group, "calls": calls, "check": check}
    assert client.json("POST", "/v1/transactions", body).status == 201
    eventually(lambda: busi.calls(gid, "01"))
    assert len(busi.calls(gid, "00")) == 4


def test_a_native_call_stays_strict(client: RawClient, busi: Busi) -> None:
    gid = new_name("native")
    busi.script(gid, "01", Reply(201, "made, without a FAILURE"))
    calls = [{"url": f"{busi.url}/TransIn", "body": "{}"}]
    assert client.json("POST", "/v1/messages", {"gid": gid, "messages": [], "calls": calls}).status in (200, 201)
    eventually(lambda: client.json("GET", f"/v1/transactions/{gid}/calls").json()["state"] == "done")
    assert len(busi.calls(gid, "01")) == 1


# --- times -------------------------------------------------------------------------------------------------------


def test_ongoing_is_asked_again_after_the_retry_interval(face: Face, look: Looker, busi: Busi) -> None:
    """The broker's own interval is 200 ms here."""
    gid = new_name("ongoing")
    busi.script(gid, "00", GO_ONGOING, GO_ONGOING)
    assert face.prepare(msg(gid, busi, "/TransIn", retry_interval=2)).ok
    look.wait(gid, "succeed")
    asked = [call.at for call in busi.calls(gid, "00")]
    assert len(asked) == 3
    assert all(later - earlier > 1.9 for earlier, later in pairwise(asked))


def test_the_retry_interval_counts_without_steps_too(face: Face, look: Looker, busi: Busi) -> None:
    """Nothing is called then. A repeated prepare is still the same, and the query shows no branch."""
    gid = new_name("ongoing")
    busi.script(gid, "00", GO_ONGOING)
    trans = {**msg(gid, busi, retry_interval=2), "steps": [], "payloads": []}
    assert face.prepare(trans).ok
    assert face.prepare(trans).ok
    assert look.status(gid) == "prepared"
    look.wait(gid, "succeed")
    first, second = (call.at for call in busi.calls(gid, "00"))
    assert second - first > 1.9
    assert look.branches(gid) == {}


def test_ongoing_may_wait_longer_than_the_longest_wait_of_the_broker(face: Face, look: Looker, busi: Busi) -> None:
    """Such a time in line must not look like one from before the clock was set back."""
    gid, other = new_name("ongoing"), new_name("ongoing")
    busi.script(gid, "00", ONGOING)
    assert face.prepare(msg(gid, busi, "/TransIn", retry_interval=3_600)).ok
    eventually(lambda: busi.calls(gid, "00"))
    busi.script(other, "00", *[ONGOING] * 2)
    assert face.prepare(msg(other, busi, "/TransIn")).ok
    look.wait(other, "succeed")
    assert len(busi.calls(gid, "00")) == 1
    assert look.post("resetNextCronTime", {"gid": gid}).status == 200
    look.wait(gid, "succeed")


@pytest.mark.parametrize(
    ("options", "shortest", "longest"),
    [
        ({"timeout_to_fail": 2, "retry_interval": 0}, 1.0, 2.5),
        ({"timeout_to_fail": 2, "retry_interval": 4}, 3.0, 5.0),
        ({"timeout_to_fail": 60, "retry_interval": 0}, 9.0, 12.5),
        ({"timeout_to_fail": 0, "retry_interval": 0}, 9.0, 12.5),
    ],
)
def test_a_short_timeout_to_fail_is_the_retry_interval(
    face: Face, look: Looker, busi: Busi, options: dict[str, int], shortest: float, longest: float
) -> None:
    """As in dtm, a `timeout_to_fail` below 10 s takes its place where none is given."""
    gid = new_name("interval")
    busi.script(gid, "01", ONGOING)
    assert face.submit(msg(gid, busi, "/TransIn", **options)).ok
    eventually(lambda: look.query(gid)["branches"][0].get("attempts"))
    (branch,) = look.query(gid)["branches"]
    wait = datetime.fromisoformat(branch["next_time"]).timestamp() - busi.calls(gid, "01")[0].at
    assert shortest < wait < longest + (time.time() - busi.calls(gid, "01")[0].at)


# --- branches by JSON-RPC ----------------------------------------------------------------------------------------


def test_a_json_rpc_branch_may_answer_without_an_envelope(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("bare")
    busi.script(gid, "01", Reply(200, '{"dtm_result":"SUCCESS"}', bare=True))
    busi.script(gid, "02", NULL)
    assert face.submit(jrpc_msg(gid, busi, wait_result=True)).ok
    assert look.status(gid) == "succeed"
    assert [call.branch for call in busi.calls(gid)] == ["01", "02"]


def test_a_json_rpc_branch_that_answers_no_json_is_called_again(face: Face, look: Looker, busi: Busi) -> None:
    gid = new_name("bare")
    busi.script(gid, "01", Reply(200, "<html>", bare=True), Reply(200, "", bare=True), GO_FAILURE, GO_ONGOING)
    assert face.submit(jrpc_msg(gid, busi, "TransIn")).ok
    look.wait(gid, "succeed")
    assert len(busi.calls(gid, "01")) == 5
