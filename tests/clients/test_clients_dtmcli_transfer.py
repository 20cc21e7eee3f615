"""PyPI's dtmcli, unmodified: a local transaction and a message, through every way in which they can come apart."""

from __future__ import annotations

from uuid import uuid4

import pytest
from dtmcli_bank import START, Bank

from eventually import eventually_equal

pytestmark = [pytest.mark.mariadb, pytest.mark.full]

NOTHING, MOVED = (0, 0), (-30, 30)
SOON = {"timeout_to_fail": 1}


def new_gid() -> str:
    return f"dtmcli-{uuid4().hex}"


@pytest.mark.parametrize("way", ["transfer", "transfer_db"])
def test_do_and_submit_moves_the_money(bank: Bank, way: str) -> None:
    gid = new_gid()
    assert bank.do(way, gid=gid).raised == ""
    bank.becomes(gid, "succeed")
    assert bank.balances() == MOVED
    assert [one["path"] for one in bank.seen(gid)] == ["/in"]
    assert bank.barriers(gid) == {(gid, "00", "msg", "01", "msg"), (gid, "01", "action", "01", "action")}


@pytest.mark.parametrize("way", ["transfer", "transfer_db"])
def test_a_business_failure_aborts_and_reaches_the_caller(bank: Bank, way: str) -> None:
    gid = new_gid()
    told = bank.do(way, gid=gid, amount=START + 1)
    assert (told.raised, told.text) == ("DTMFailureError", "not enough money")
    assert bank.status(gid) == "failed"
    assert bank.seen(gid) == [], "the client knew: nobody had to ask"
    assert bank.balances() == NOTHING


def test_a_failure_after_the_change_takes_the_change_back(bank: Bank) -> None:
    gid = new_gid()
    told = bank.do("transfer", gid=gid, then="refuse")
    assert (told.raised, told.text) == ("DTMFailureError", "refused by the business")
    assert bank.status(gid) == "failed"
    assert bank.balances() == NOTHING
    assert bank.barriers(gid) == set()


def test_an_exception_makes_the_client_ask_and_then_abort(bank: Bank) -> None:
    gid = new_gid()
    told = bank.do("transfer", gid=gid, then="raise")
    assert (told.raised, told.text) == ("ValueError", "a mistake in the business")
    assert bank.status(gid) == "failed"
    assert [(one["path"], one["status"]) for one in bank.seen(gid)] == [("/query_prepared", 409)]
    assert bank.balances() == NOTHING
    assert bank.barriers(gid) == {(gid, "00", "msg", "01", "rollback")}


def test_an_exception_after_the_commit_makes_the_client_ask_and_then_submit(bank: Bank) -> None:
    gid = new_gid()
    told = bank.do("transfer", gid=gid, then="raise after")
    assert told.raised == "ValueError"
    bank.becomes(gid, "succeed")
    assert {(one["path"], one["status"]) for one in bank.seen(gid)} == {("/query_prepared", 200), ("/in", 200)}
    assert bank.balances() == MOVED


# --- the sender dies -------------------------------------------------------------------------------------------------


def test_killed_between_local_commit_and_submit_the_check_back_commits(bank: Bank) -> None:
    gid = new_gid()
    assert bank.do("transfer", gid=gid, then="die after", **SOON).raised == "killed"
    bank.becomes(gid, "succeed")
    assert bank.balances() == MOVED
    checks = bank.seen(gid, "/query_prepared")
    assert [(one["method"], one["status"]) for one in checks] == [("GET", 200)]
    assert checks[0]["query"] == {"gid": gid, "trans_type": "msg", "branch_id": "00", "op": "msg"}


@pytest.mark.parametrize("when", ["die before", "die inside"])
def test_killed_before_the_local_commit_the_check_back_rolls_back(bank: Bank, when: str) -> None:
    gid = new_gid()
    assert bank.do("transfer", gid=gid, then=when, **SOON).raised == "killed"
    bank.becomes(gid, "failed")
    assert bank.balances() == NOTHING
    assert bank.seen(gid, "/in") == []
    assert bank.barriers(gid) == {(gid, "00", "msg", "01", "rollback")}


def test_a_local_transaction_that_comes_after_the_check_back_fails(bank: Bank) -> None:
    gid = new_gid()
    told = bank.do("transfer", gid=gid, then="late", **SOON)
    assert told.raised in ("Exception", "DTMFailureError"), told
    bank.becomes(gid, "failed")
    assert bank.balances() == NOTHING
    assert bank.seen(gid, "/in") == []


def test_a_check_back_that_cannot_tell_decides_nothing(bank: Bank) -> None:
    gid = new_gid()
    bank.plan(query_prepared=["break", "ongoing"])
    assert bank.do("transfer", gid=gid, then="die after", **SOON).raised == "killed"
    eventually_equal(lambda: [one["status"] for one in bank.seen(gid, "/query_prepared")], [500, 425, 200])
    bank.becomes(gid, "succeed")
    assert bank.balances() == MOVED


def test_the_broker_killed_before_the_check_back_asks_after_its_restart(bank: Bank) -> None:
    gid = new_gid()
    assert bank.do("transfer", gid=gid, then="die after", **SOON).raised == "killed"
    bank.broker.kill()
    bank.broker.start()
    bank.becomes(gid, "succeed")
    assert bank.balances() == MOVED


def test_without_a_broker_the_business_is_not_even_begun(bank: Bank) -> None:
    gid = new_gid()
    bank.broker.kill()
    try:
        assert bank.do("transfer_db", gid=gid).raised == "ConnectionError"
        assert bank.balances() == NOTHING
        assert bank.barriers(gid) == set()
    finally:
        bank.broker.start()
    assert bank.status(gid) is None


# --- many ------------------------------------------------------------------------------------------------------------


def test_twenty_transfers_at_the_same_time_and_no_money_is_made_or_lost(bank: Bank) -> None:
    """There is money for thirteen of them; the service loses some of its answers."""
    amount, gids = 750, [new_gid() for _ in range(20)]
    bank.plan(**{"in": ["work", "lose", "work", "refuse", "lose", "break"]})
    ended = bank.do("transfers", gids=gids, amount=amount, retry_interval=1).result
    paid = {gid for gid, word in ended.items() if word == "ok"}
    assert len(paid) == START // amount
    assert {word for gid, word in ended.items() if gid not in paid} == {"DTMFailureError"}
    wanted = {gid: "succeed" if gid in paid else "failed" for gid in gids}
    eventually_equal(lambda: {gid: bank.status(gid) for gid in gids}, wanted)
    rows = bank.barriers(*gids)
    assert {row[0] for row in rows if row[1:] == ("00", "msg", "01", "msg")} == paid
    assert {row[0] for row in rows if row[1:] == ("01", "action", "01", "action")} == paid
    assert len(rows) == 2 * len(paid)
    assert bank.balances() == (-amount * len(paid), amount * len(paid))


def test_the_cursor_and_its_connection_are_closed_behind_the_caller(bank: Bank) -> None:
    assert bank.do("cursor_is_closed").result == [True, False]
