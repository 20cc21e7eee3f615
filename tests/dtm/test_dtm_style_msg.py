"""`Msg`: the six scenarios of dtm's own tests of messages with a barrier, on each engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from style_bank import Bank, CommitRefused

import tallystick
from busi import Busi
from eventually import eventually
from tallystick import errors
from tallystick.dtm import BranchBarrier, Duplicated, Failure, Msg

Business = Callable[[Any], Any]
Way = Callable[[Msg, Bank, Any, Business], Any]


def by_barrier(msg: Msg, bank: Bank, connection: Any, business: Business) -> Any:
    return msg.do_and_submit(None, lambda bb: bb.call(connection, business))


def by_database(msg: Msg, bank: Bank, connection: Any, business: Business) -> Any:
    return msg.do_and_submit_db(None, connection, business)


ways = pytest.mark.parametrize("way", [by_barrier, by_database])


def transfer(ts: tallystick.Client, busi: Busi) -> Msg:
    # The time to a check-back is long: what these tests see is the client's own doing.
    return Msg(ts, ts.new_gid(), timeout_to_fail=60).add(f"{busi.url}/TransIn", {"amount": 30})


def trans_out(bank: Bank) -> Business:
    return lambda connection: bank.adjust(connection, 1, -30)


def assert_moved(ts: tallystick.Client, bank: Bank, busi: Busi, gid: str) -> None:
    eventually(lambda: ts.calls(gid).state == "done")
    assert bank.balances() == (9970, 10000)
    [called] = busi.calls(gid)
    assert (called.path, called.body, called.branch) == ("/TransIn", b'{"amount":30}', "01")


def assert_unchanged(ts: tallystick.Client, bank: Bank, busi: Busi, gid: str) -> None:
    eventually(lambda: ts.outcome(gid) == "rolled_back")
    ts.call(f"{busi.url}/later", gid=f"{gid}-later", wait=True)
    assert bank.balances() == (10000, 10000)
    assert busi.calls(gid) == []


@ways
def test_do_and_submit(ts: tallystick.Client, bank: Bank, busi: Busi, way: Way) -> None:
    msg = transfer(ts, busi)
    with bank.connection() as connection:
        way(msg, bank, connection, trans_out(bank))
    assert_moved(ts, bank, busi, msg.gid)


@ways
def test_the_business_fails(ts: tallystick.Client, bank: Bank, busi: Busi, way: Way) -> None:
    def business(connection: Any) -> None:
        bank.adjust(connection, 1, -30)
        raise Failure("not enough money")

    msg = transfer(ts, busi)
    with bank.connection() as connection, pytest.raises(Failure, match="not enough money"):
        way(msg, bank, connection, business)
    assert_unchanged(ts, bank, busi, msg.gid)


@ways
def test_the_business_raises_something_else(ts: tallystick.Client, bank: Bank, busi: Busi, way: Way) -> None:
    def business(connection: Any) -> None:
        bank.adjust(connection, 1, -30)
        raise KeyError("a bug")

    msg = transfer(ts, busi)
    with bank.connection() as connection, pytest.raises(KeyError):
        way(msg, bank, connection, business)
    assert_unchanged(ts, bank, busi, msg.gid)


@ways
def test_the_business_comes_later_than_the_check_back(ts: tallystick.Client, bank: Bank, busi: Busi, way: Way) -> None:
    msg = transfer(ts, busi)
    with bank.connection() as other, pytest.raises(Failure):
        BranchBarrier("msg", msg.gid, "00", "msg").query_prepared(other)
    with bank.connection() as connection, pytest.raises(Duplicated):
        way(msg, bank, connection, trans_out(bank))
    assert_unchanged(ts, bank, busi, msg.gid)


@ways
def test_the_prepare_fails(bank: Bank, busi: Busi, way: Way) -> None:
    with tallystick.Client("http://127.0.0.1:9", group="g", database=bank.open, timeout=0.5) as nowhere:
        msg = transfer(nowhere, busi)
        with bank.connection() as connection, pytest.raises(errors.BrokerUnavailable):
            way(msg, bank, connection, trans_out(bank))
    assert bank.balances() == (10000, 10000)
    assert busi.calls(msg.gid) == []


@ways
def test_the_commit_fails(ts: tallystick.Client, bank: Bank, busi: Busi, way: Way) -> None:
    msg = transfer(ts, busi)
    expected = CommitRefused if way is by_barrier else errors.TransactionFailed
    with bank.failing("before") as connection, pytest.raises(expected):
        way(msg, bank, connection, trans_out(bank))
    assert_unchanged(ts, bank, busi, msg.gid)


def test_the_commit_works_and_says_that_it_failed(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    msg = transfer(ts, busi)
    with bank.failing("after") as connection, pytest.raises(CommitRefused):
        by_barrier(msg, bank, connection, trans_out(bank))
    assert_moved(ts, bank, busi, msg.gid)


def test_a_commit_that_is_found_out_to_have_worked_is_no_error(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    msg = transfer(ts, busi)
    with bank.failing("after") as connection:
        by_database(msg, bank, connection, trans_out(bank))
    assert_moved(ts, bank, busi, msg.gid)


@ways
def test_a_gid_is_used_once(ts: tallystick.Client, bank: Bank, busi: Busi, way: Way) -> None:
    msg = transfer(ts, busi)
    with bank.connection() as connection:
        way(msg, bank, connection, trans_out(bank))
        again = Msg(ts, msg.gid).add(f"{busi.url}/TransIn", {"amount": 30})
        with pytest.raises((errors.AlreadyResolved, Duplicated)):
            way(again, bank, connection, trans_out(bank))
    assert_moved(ts, bank, busi, msg.gid)


def test_a_business_that_tries_again_after_a_rollback_is_found_by_the_check_back(
    ts: tallystick.Client, bank: Bank, busi: Busi
) -> None:
    def business(bb: BranchBarrier) -> None:
        with bank.connection() as connection:
            with pytest.raises(KeyError):
                bb.call(connection, lambda _: {}["a deadlock, say"])
            bb.call(connection, trans_out(bank))

    msg = transfer(ts, busi)
    msg.do_and_submit(None, business)
    with bank.connection() as connection:
        BranchBarrier("msg", msg.gid, "00", "msg").query_prepared(connection)
    assert_moved(ts, bank, busi, msg.gid)


def committed_by_the_barrier(bank: Bank, bb: BranchBarrier) -> None:
    with bank.connection() as connection:
        bb.call(connection, trans_out(bank))
    raise Failure("too late")


def committed_by_the_business(bank: Bank, bb: BranchBarrier) -> None:
    with bank.connection() as connection:
        with bb.once(connection):
            bank.adjust(connection, 1, -30)
        connection.commit()
    raise Failure("too late")


def committed_in_doubt(bank: Bank, bb: BranchBarrier) -> None:
    with bank.failing("after") as connection:
        try:
            bb.call(connection, trans_out(bank))
        except CommitRefused as refused:
            raise Failure("taken for a refusal") from refused


@pytest.mark.parametrize("business", [committed_by_the_barrier, committed_by_the_business, committed_in_doubt])
def test_a_failure_after_the_commit_does_not_abort(
    ts: tallystick.Client, bank: Bank, busi: Busi, business: Callable[[Bank, BranchBarrier], None]
) -> None:
    msg = transfer(ts, busi)
    with pytest.raises(Failure):
        msg.do_and_submit(None, lambda bb: business(bank, bb))
    assert_moved(ts, bank, busi, msg.gid)
