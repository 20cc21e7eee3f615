"""dtm's api_test: query, all, forceStop, resetCronTime, resetNextCronTime; and what its alert webhook is here."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from dtm_faces import SHORT, HttpFace, Looker, msg, new_name

from brokers import running_broker
from busi import ERROR, ONGOING, Busi, Reply, running_busi
from eventually import eventually
from raw_client import RawClient

FAR = {"timeout_to_fail": 3_000, "retry_interval": 3_000}


# --- query -------------------------------------------------------------------------------------------------------


def test_query_shows_the_transaction_and_its_branches(http: HttpFace, look: Looker, busi: Busi) -> None:
    gid = new_name("query")
    headers = {"X-Tenant": "blue"}
    trans = msg(gid, busi, "/TransIn", custom_data='{"delay":1}', branch_headers=headers, request_timeout=5)
    before = time.time()
    assert http.prepare(trans).ok
    found = look.query(gid)
    transaction, (branch,) = found["transaction"], found["branches"]
    assert (transaction["gid"], transaction["trans_type"], transaction["status"]) == (gid, "msg", "prepared")
    assert (transaction["query_prepared"], transaction["protocol"]) == (trans["query_prepared"], "http")
    assert (transaction["id"], transaction["concurrent"], transaction["custom_data"]) == (0, False, '{"delay":1}')
    expected = {"timeout_to_fail": 1, "request_timeout": 5, "retry_interval": 1, "branch_headers": headers}
    assert json.loads(transaction["options"]) == expected
    assert before - 0.01 <= datetime.fromisoformat(transaction["create_time"]).timestamp() <= time.time()
    assert "finish_time" not in transaction
    assert "rollback_time" not in transaction
    assert (branch["branch_id"], branch["op"], branch["status"]) == ("01", "action", "prepared")
    assert branch["url"] == f"{busi.url}/TransIn"
    assert base64.b64decode(branch["bin_data"]).decode() == trans["payloads"][0]


def test_query_after_the_end(http: HttpFace, look: Looker, busi: Busi) -> None:
    done, failed = new_name("query"), new_name("query")
    busi.script(done, "01", ERROR)
    assert http.submit(msg(done, busi, "/TransIn")).ok
    assert http.prepare(msg(failed, busi, "/TransIn")).ok
    assert http.abort({"gid": failed, "trans_type": "msg"}).ok
    look.wait(done, "succeed")
    found = look.query(done)
    assert set(found["transaction"]) >= {"id", "create_time", "update_time", "gid", "status", "finish_time"}
    assert found["branches"][0]["finish_time"] >= found["transaction"]["create_time"]
    assert found["branches"][0]["attempts"] == 2
    assert "rollback_time" in look.query(failed)["transaction"]


def test_query_of_nothing(look: Looker) -> None:
    answer = look.get("query")
    assert (answer.status, answer.json()) == (500, {"message": "no gid specified"})
    assert look.get("query", gid="").status == 500
    for gid in ("nobody", "no gid \0", "ä", "x" * 200):
        assert look.get("query", gid=gid).json() == {"transaction": None, "branches": []}
        assert look.get("all", gid=gid).json() == {"transactions": [], "next_position": ""}


def test_a_branch_that_fails_shows_how_often_and_why(http: HttpFace, look: Looker, busi: Busi) -> None:
    gid = new_name("query")
    busi.script(gid, "01", ERROR, ERROR)
    assert http.submit(msg(gid, busi, "/TransIn", retry_interval=1)).ok
    eventually(lambda: look.query(gid)["branches"][0].get("attempts", 0) >= 1)
    branch = look.query(gid)["branches"][0]
    assert branch["last_error"] == "status 500: something broke"
    assert branch["next_time"] > branch["create_time"]
    look.wait(gid, "succeed")


# --- all ---------------------------------------------------------------------------------------------------------


class Ground:
    """A broker with transactions of every status, and nothing else."""

    def __init__(self, look: Looker, gids: dict[str, list[str]]) -> None:
        self.look, self.gids = look, gids

    def all(self, **query: Any) -> tuple[list[str], str]:
        page = self.look.get("all", **query).json()
        return [one["gid"] for one in page["transactions"]], page["next_position"]


@pytest.fixture(scope="module")
def ground(busi: Busi) -> Iterator[Ground]:
    with running_broker(**SHORT) as broker, RawClient(broker.url) as client:
        face, look = HttpFace(client), Looker(client)
        gids: dict[str, list[str]] = {"prepared": [], "submitted": [], "succeed": [], "failed": []}
        for status, made in gids.items():
            made += [new_name(f"all-{status}") for _ in range(3)]
            for gid in made:
                _make(status, gid, face, busi)
        for status, made in gids.items():
            for gid in made:
                look.wait(gid, status)
        native = {"gid": "native", "group": "g", "messages": [{"topic": "t", "value": "v"}]}
        assert client.json("POST", "/v1/transactions", native).status == 201
        yield Ground(look, gids)


def _make(status: str, gid: str, face: HttpFace, busi: Busi) -> None:
    trans = msg(gid, busi, "/TransIn", **FAR)
    if status == "submitted":
        busi.script(gid, "01", *[ERROR] * 1_000)
    assert (face.submit if status in ("submitted", "succeed") else face.prepare)(trans).ok
    if status == "failed":
        assert face.abort(trans).ok


def test_all_goes_on_from_page_to_page(ground: Ground) -> None:
    seen, position = [], ""
    for _ in range(20):
        page, position = ground.all(limit=5, position=position)
        assert len(page) <= 5
        seen += page
        if not position:
            break
    assert sorted(seen) == sorted(gid for made in ground.gids.values() for gid in made)


@pytest.mark.parametrize("status", ["prepared", "submitted", "succeed", "failed"])
def test_all_of_a_status(ground: Ground, status: str) -> None:
    found, position = ground.all(status=status)
    assert (set(found), position) == (set(ground.gids[status]), "")


def test_all_by_gid_kind_and_time(ground: Ground) -> None:
    gid = ground.gids["submitted"][0]
    assert ground.all(gid=gid) == ([gid], "")
    assert ground.all(gid=gid, status="failed") == ([], "")
    assert ground.all(gid="nobody") == ([], "")
    assert ground.all(transType="saga") == ([], "")
    assert len(ground.all(transType="msg")[0]) == 12
    hour = 3_600_000
    now = int(time.time() * 1000)
    assert len(ground.all(createTimeStart=now - hour, createTimeEnd=now + hour)[0]) == 12
    assert ground.all(createTimeStart=now + hour)[0] == []
    assert ground.all(createTimeEnd=now - hour)[0] == []


@pytest.mark.parametrize("query", [{"status": "x"}, {"limit": "many"}, {"limit": 10**9}, {"position": "x"}])
def test_all_with_a_wrong_parameter_says_which(ground: Ground, query: dict[str, Any]) -> None:
    answer = ground.look.get("all", **query)
    assert answer.status == 500
    assert set(answer.json()) == {"message"}
    assert answer.json()["message"].startswith(next(iter(query)))


# --- bringing forward --------------------------------------------------------------------------------------------


def test_reset_next_cron_time_makes_the_next_try_due_now(http: HttpFace, look: Looker, busi: Busi) -> None:
    gid = new_name("reset")
    busi.script(gid, "01", ERROR)
    assert http.submit(msg(gid, busi, "/TransIn", **FAR)).ok
    eventually(lambda: look.query(gid)["branches"][0].get("attempts"))
    assert look.post("resetNextCronTime", {"gid": gid}).json() == {"dtm_result": "SUCCESS"}
    look.wait(gid, "succeed")


def test_reset_next_cron_time_of_a_prepared_msg_asks_now(http: HttpFace, look: Looker, busi: Busi) -> None:
    gid = new_name("reset")
    assert http.prepare(msg(gid, busi, "/TransIn", **FAR)).ok
    assert look.post("resetNextCronTime", {"gid": gid}).json() == {"dtm_result": "SUCCESS"}
    look.wait(gid, "succeed")
    assert len(busi.calls(gid, "00")) == 1


def test_reset_cron_time_brings_forward_as_many_as_asked(busi: Busi) -> None:
    with running_broker(**{**SHORT, "call_retry_cap": "1h"}) as broker, RawClient(broker.url) as client:
        face, look = HttpFace(client), Looker(client)
        gids = [new_name("reset-all") for _ in range(4)]
        for gid in gids:
            busi.script(gid, "01", ERROR)
            assert face.submit(msg(gid, busi, "/TransIn", **FAR)).ok
        for gid in gids:
            eventually(lambda gid=gid: look.query(gid)["branches"][0].get("attempts"))
        nothing = look.get("resetCronTime", timeout=7_000).json()
        assert nothing == {"has_remaining": False, "succeed_count": 0}
        assert look.get("resetCronTime", timeout=100, limit=3).json() == {"has_remaining": True, "succeed_count": 3}
        eventually(lambda: sum(look.status(gid) == "succeed" for gid in gids) == 3)
        assert look.post("resetCronTime", None).json() == {"has_remaining": False, "succeed_count": 1}
        for gid in gids:
            look.wait(gid, "succeed")


# --- the webhook -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook_answers", [200, 500])
def test_a_branch_that_fails_again_and_again_is_told_to_the_alert_url(busi: Busi, hook_answers: int) -> None:
    """dtm's TestMsgWebhook and its variant with a hook that fails: the operator hears of the gid at the third failure,
    and the transaction succeeds later, whatever the hook said."""
    with running_busi() as hook:
        hook.default = Reply(hook_answers, "")
        settings = {**SHORT, "alert_url": f"{hook.url}/alert"}
        with running_broker(**settings) as broker, RawClient(broker.url) as client:
            face, look, gid = HttpFace(client), Looker(client), new_name("TestMsgWebhook")
            busi.script(gid, "01", ERROR, ERROR, ERROR)
            assert face.submit(msg(gid, busi, "/TransIn")).ok
            alerts = eventually(lambda: [call for call in hook.calls("") if gid.encode() in call.body])
            assert b"something broke" in alerts[0].body
            told = json.loads(alerts[0].body)
            assert told["event"] == "call_failing"
            # dtm's own keys, which a hook that was written for dtm reads.
            assert (told["gid"], told["status"], told["branch"]) == (gid, "submitted", f"{busi.url}/TransIn")
            assert (told["error"], told["retry_count"]) == ("status 500: something broke", 3)
            look.wait(gid, "succeed")
            assert len(busi.calls(gid)) == 4


def test_alerts_count_the_failed_tries_alike(busi: Busi) -> None:
    """Also the last, after which the branch is parked. A try that was answered with ONGOING has not failed."""
    with (
        running_busi() as hook,
        running_broker(**SHORT, alert_url=f"{hook.url}/alert", call_max_attempts=5) as broker,
        RawClient(broker.url) as client,
    ):
        gid = new_name("parked")
        busi.script(gid, "01", ERROR, ONGOING, *[ERROR] * 3)
        assert HttpFace(client).submit(msg(gid, busi, "/TransIn", retry_interval=1)).ok
        eventually(lambda: len(hook.calls("")) == 2)
        alerts = [json.loads(one.body) for one in hook.calls("")]
    told = [(one["event"], one["retry_count"], "try 4" in one["detail"], "try 5" in one["detail"]) for one in alerts]
    assert told == [("call_failing", 3, True, False), ("call_parked", 4, False, True)]
