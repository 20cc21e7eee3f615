"""`tx.commit(wait=True)`: stay for the first answers, and be told which call is not done and why."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator

import pytest
from calls_support import pay_by_call, pay_by_call_async
from client_support import Bank

import tallystick
from brokers import BrokerProcess, running_broker
from busi import ERROR, FAILURE, ONGOING, Busi, Reply, running_busi
from cutting_proxy import lossy_proxy
from eventually import eventually
from tallystick import CallsNotFinished, errors

SLOW = Reply(hold=1.0)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="500ms", check_interval="300ms", call_retry_first="2s") as process:
        yield process


@pytest.fixture
def busi() -> Iterator[Busi]:
    with running_busi() as service:
        yield service


def test_the_wait_ends_when_the_calls_are_done(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    gid = ts.new_gid()
    busi.script(gid, "02", Reply(hold=0.5))
    with bank.connection() as connection, ts.transaction(connection, gid=gid) as tx:
        bank.note(connection, "paid")
        tx.call(f"{busi.url}/one", 1)
        tx.call(f"{busi.url}/two", 2)
        tx.commit(wait=True)
        assert bank.notes() == ["paid"]
        assert [called.path for called in busi.calls(gid)] == ["/one", "/two"]
        assert ts.calls(gid).state == "done"


@pytest.mark.parametrize(
    ("reply", "said"), [(ERROR, "status 500: something broke"), (FAILURE, "FAILURE"), (ONGOING, "ONGOING")]
)
def test_a_call_that_is_not_done_is_named_with_its_reason(
    ts: tallystick.Client, bank: Bank, busi: Busi, reply: Reply, said: str
) -> None:
    gid = ts.new_gid()
    busi.script(gid, "02", reply)
    began = time.monotonic()
    with pytest.raises(CallsNotFinished) as raised:
        pay_by_call(ts, bank, [f"{busi.url}/{path}" for path in ("one", "two", "three")], gid=gid, wait=30)
    assert time.monotonic() - began < 10, "the wait is for the first answer, not for the second try"
    assert bank.notes() == ["paid"]
    assert ts.outcome(gid) == "committed"
    view = raised.value.view
    assert view is not None
    assert [call.state for call in view.calls] == ["done", "waiting", "waiting"]
    assert f"02 {busi.url}/two is waiting after 1 attempt" in str(raised.value)
    assert said in view.calls[1].last_error
    assert said in str(raised.value)
    assert "/one" not in str(raised.value)
    eventually(lambda: ts.calls(gid).state == "done")  # the broker went on


def test_a_wait_that_runs_out_tells_what_was_seen_last(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    gid = ts.new_gid()
    busi.script(gid, "01", Reply(hold=2.0))
    began = time.monotonic()
    with pytest.raises(CallsNotFinished, match=r"the wait of 0.5 s is over") as raised:
        pay_by_call(ts, bank, [busi.url], gid=gid, wait=0.5)
    assert time.monotonic() - began >= 0.5
    assert raised.value.view is not None
    assert raised.value.view.calls[0].attempts == 0
    eventually(lambda: ts.calls(gid).state == "done")


def test_leaving_the_block_after_a_commit_does_nothing_more(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    gid = ts.new_gid()
    with pytest.raises(KeyError):
        pay_by_call(ts, bank, [busi.url], gid=gid, wait=True, after_commit=KeyError("late"))
    assert bank.notes() == ["paid"]
    assert len(busi.calls(gid)) == 1
    assert ts.outcome(gid) == "committed"


def test_nothing_can_be_added_after_a_commit(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    with bank.connection() as connection, ts.transaction(connection) as tx:
        tx.commit()
        for again in (lambda: tx.call(busi.url), lambda: tx.send("t", 1), tx.commit):
            with pytest.raises(errors.InvalidRequest, match="has ended"):
                again()


def test_a_commit_that_fails_leaves_nothing(ts: tallystick.Client, bank: Bank) -> None:
    with pytest.raises(errors.NotAllowed):
        pay_by_call(ts, bank, ["http://192.0.2.1/"], wait=True)
    assert bank.notes() == []


def test_a_commit_without_calls_or_without_a_wait_returns_at_once(
    ts: tallystick.Client, bank: Bank, busi: Busi, topic: str
) -> None:
    gid = ts.new_gid()
    busi.script(gid, "01", SLOW)
    with bank.connection() as connection:
        with ts.transaction(connection) as tx:
            bank.note(connection, "alone")
            tx.commit(wait=True)
        with ts.transaction(connection) as tx:
            tx.send(topic, 1)
            tx.commit(wait=True)
        assert ts.commit(tx.gid, wait=True)
        with ts.transaction(connection, gid=gid) as tx:
            tx.call(busi.url, 1)
            tx.commit()
            assert ts.calls(gid).state == "waiting"
    assert bank.notes() == ["alone"]


def test_a_wait_that_is_none_is_refused_before_anything_happens(ts: tallystick.Client, bank: Bank) -> None:
    for wait in (-1, float("inf"), float("nan"), "yes"):
        with pytest.raises(errors.InvalidRequest, match="wait"):
            pay_by_call(ts, bank, ["http://127.0.0.1:9/"], wait=wait)  # type: ignore[arg-type]
    assert bank.notes() == []


def test_a_lost_answer_to_the_wait_is_asked_for_again(
    broker: BrokerProcess, bank: Bank, busi: Busi, group: str
) -> None:
    with lossy_proxy(broker.port) as proxy, tallystick.Client(proxy.url, group=group, wait=True) as ts:
        proxy.losing, proxy.lose_at_most = b"/calls?wait_ms", 2
        with bank.connection() as connection, ts.transaction(connection) as tx:
            tx.call(busi.url, 1)
            tx.commit(wait=20)
        assert proxy.cut == 2
    assert len(busi.calls(tx.gid)) == 1


def test_a_wait_is_not_fooled_by_a_commit_that_is_late(
    broker: BrokerProcess, bank: Bank, busi: Busi, group: str
) -> None:
    """The broker has not heard of the commit yet: its calls are held, and that is not a first pass."""
    with lossy_proxy(broker.port) as proxy, tallystick.Client(proxy.url, group=group, commit_wait=0.1, wait=True) as ts:
        proxy.refusing = b"\xa6commit"
        threading.Timer(1.0, setattr, (proxy, "refusing", None)).start()
        with bank.connection() as connection, ts.transaction(connection, check=tallystick.CheckBack(after=60)) as tx:
            tx.call(busi.url, 1)
            tx.commit(wait=20)
        assert ts.calls(tx.gid).state == "done"


def test_without_a_broker_the_wait_says_so(bank: Bank, busi: Busi, group: str) -> None:
    with (
        running_broker() as own,
        tallystick.Client(own.url, group=group, commit_wait=0.1, timeout=1, wait=True) as ts,
        bank.connection() as connection,
        ts.transaction(connection, prepare="early") as tx,
    ):
        tx.call(busi.url, 1)
        tx.prepare()
        bank.note(connection, "paid")
        own.kill()
        with pytest.raises(CallsNotFinished, match="asked in vain") as raised:
            tx.commit(wait=1)
    assert raised.value.view is None
    assert bank.notes() == ["paid"]


async def test_a_wait_on_the_loop_leaves_the_turn_to_others(
    broker: BrokerProcess, bank: Bank, busi: Busi, group: str
) -> None:
    """The service that is called may be this very process, with a block of its own."""
    async with tallystick.AsyncClient(broker.url, group=group, wait=True) as ts:
        gid = ts.new_gid()
        busi.script(gid, "01", SLOW)

        async def other() -> float:
            await asyncio.sleep(0.2)
            with contextlib.closing(sqlite3.connect(bank.path)) as connection:
                async with ts.transaction(connection):
                    bank.note(connection, "other")
            return time.monotonic()

        async def waiting() -> float:
            await pay_by_call_async(ts, bank, [busi.url], gid=gid, wait=True)
            return time.monotonic()

        waited, overtook = await asyncio.gather(waiting(), other())
    assert overtook < waited
    assert bank.notes() == ["other", "paid"]


async def test_the_asynchronous_wait_tells_the_same(broker: BrokerProcess, bank: Bank, busi: Busi, group: str) -> None:
    async with tallystick.AsyncClient(broker.url, group=group, wait=True) as ts:
        gid = ts.new_gid()
        busi.script(gid, "01", ERROR)
        with pytest.raises(CallsNotFinished) as raised:
            await pay_by_call_async(ts, bank, [busi.url], gid=gid, wait=10)
        assert raised.value.gid == gid
        assert bank.notes() == ["paid"]
        busi.script(f"{gid}-2", "01", ERROR)
        with pytest.raises(CallsNotFinished):
            await ts.call(busi.url, 1, gid=f"{gid}-2", wait=True)
