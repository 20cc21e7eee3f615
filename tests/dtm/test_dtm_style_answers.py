"""Answers to messages of `tallystick.dtm` follow dtm's rule, as its handlers give them; those of a client do not."""

from __future__ import annotations

from typing import Any

import pytest
from style_bank import Bank

import tallystick
from brokers import BrokerProcess
from busi import Busi, Reply
from eventually import eventually
from tallystick.client import CheckBack
from tallystick.core.dtm_mark import has_dtm_calls
from tallystick.dtm import AsyncMsg, Msg

NULL = Reply(200, "null")
EMPTY = Reply(200, "")
WORD = Reply(200, '{"dtm_result":"FAILURE"}')
GO_FAILURE = Reply(409, '{"error":"FAILURE"}')
GO_ONGOING = Reply(425, '{"error":"ONGOING"}')
OUTCOMES = [(NULL, "committed"), (EMPTY, "committed"), (WORD, "rolled_back"), (GO_FAILURE, "rolled_back")]
OF_A_MINUTE: dict[str, Any] = {"timeout_to_fail": 60}


@pytest.fixture
def by_url(broker: BrokerProcess, group: str) -> Any:
    with tallystick.Client(broker.url, group=group) as client:
        yield client


@pytest.mark.parametrize("way", ["address", "client", "async client"])
async def test_a_check_back_is_read_by_dtms_rule(
    way: str, broker: BrokerProcess, by_url: tallystick.Client, busi: Busi
) -> None:
    expected = {}
    async with tallystick.AsyncClient(broker.url, group="dtm-style-async") as client:
        for reply, outcome in OUTCOMES:
            gid = by_url.new_gid()
            expected[gid] = outcome
            busi.script(gid, "00", GO_ONGOING, reply)
            if way == "async client":
                msg = AsyncMsg(client, gid, timeout_to_fail=1, retry_interval=1).add(f"{busi.url}/TransIn", {})
                await msg.prepare(f"{busi.url}/QueryPrepared")
            else:
                made = Msg(broker.url if way == "address" else by_url, gid, timeout_to_fail=1, retry_interval=1)
                made.add(f"{busi.url}/TransIn", {}).prepare(f"{busi.url}/QueryPrepared")
    eventually(lambda: {gid: by_url.outcome(gid) for gid in expected} == expected, seconds=60)


def test_a_branch_is_read_by_dtms_rule(by_url: tallystick.Client, busi: Busi) -> None:
    """Also without a prepare. 204 is no success in dtm; FAILURE anywhere in the body is a failure."""
    msg = Msg(by_url, **OF_A_MINUTE).add(f"{busi.url}/TransIn", {})
    busi.script(msg.gid, "01", Reply(200, "the answer is FAILURE"), Reply(204, ""), NULL)
    msg.submit()
    eventually(lambda: by_url.calls(msg.gid).state == "done")
    assert len(busi.calls(msg.gid, "01")) == 3


def test_a_message_in_a_local_transaction_is_marked(by_url: tallystick.Client, busi: Busi, one_bank: Bank) -> None:
    msg = Msg(by_url, **OF_A_MINUTE).add(f"{busi.url}/TransIn", {})
    with one_bank.connection() as connection:
        msg.do_and_submit_db(f"{busi.url}/QueryPrepared", connection, lambda _: None)
    assert has_dtm_calls(by_url.calls(msg.gid).remark)


def test_a_client_keeps_the_native_rule(by_url: tallystick.Client, busi: Busi) -> None:
    gid = by_url.new_gid()
    busi.script(gid, "00", NULL, WORD, Reply(200, '{"outcome":"committed"}'))
    busi.script(gid, "01", Reply(204, ""))
    check = CheckBack(url=f"{busi.url}/QueryPrepared", after=0.1)
    by_url.prepare(gid, [], calls=[tallystick.outgoing_call(f"{busi.url}/TransIn", {})], check=check)
    eventually(lambda: by_url.outcome(gid) == "committed", seconds=60)
    assert len(busi.calls(gid, "00")) == 3
    eventually(lambda: by_url.calls(gid).state == "done")
    assert len(busi.calls(gid, "01")) == 1
