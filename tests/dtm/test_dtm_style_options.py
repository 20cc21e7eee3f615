"""What else a message can do: options, topics, waiting, check-backs by URL, asyncio."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from style_bank import Bank

import tallystick
from brokers import BrokerProcess, running_broker
from busi import ERROR, FAILURE, Busi
from busi_grpc import busi_service
from eventually import eventually
from raw_client import RawClient
from tallystick import CallsNotFinished, errors
from tallystick.dtm import AsyncBranchBarrier, AsyncMsg, BranchBarrier, Failure, Msg


@pytest.fixture
def bank(one_bank: Bank) -> Bank:
    return one_bank


def test_a_message_without_a_prepare_is_simply_sent(ts: tallystick.Client, busi: Busi) -> None:
    msg = Msg(ts).add(f"{busi.url}/one", {"book": 5}).add(f"{busi.url}/two", {"book": 6}).set_wait_result()
    msg.submit()
    assert [called.path for called in busi.calls(msg.gid)] == ["/one", "/two"]


def test_prepare_then_submit_or_abort(ts: tallystick.Client, busi: Busi) -> None:
    submitted, aborted = Msg(ts).add(busi.url, 1), Msg(ts).add(busi.url, 2)
    for msg in (submitted, aborted):
        msg.prepare()
        assert ts.calls(msg.gid).state == "held"
    submitted.set_wait_result().submit()
    aborted.abort()
    assert ts.outcome(aborted.gid) == "rolled_back"
    assert (len(busi.calls(submitted.gid)), busi.calls(aborted.gid)) == (1, [])


def test_the_options_reach_the_service(ts: tallystick.Client, busi: Busi) -> None:
    msg = Msg(ts, request_timeout=5, retry_interval=0.2, branch_headers={"X-Trace": "t1"})
    msg.add(f"{busi.url}/one", b"raw").add(f"{busi.url}/two", "text").add(f"{busi.url}/three").set_concurrent()
    msg.set_delay(0.5).set_wait_result(20)
    msg.submit()
    called = sorted(busi.calls(msg.gid), key=lambda one: one.branch)
    assert [(one.method, one.body) for one in called] == [("POST", b"raw"), ("POST", b"text"), ("GET", b"")]
    assert {one.headers["x-trace"] for one in called} == {"t1"}
    view = ts.calls(msg.gid)
    assert view.concurrent
    assert min(one.at * 1000 for one in called) - view.created_at >= 500


def test_wait_result_names_the_call_that_failed(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    msg = Msg(ts, retry_interval=0.1).add(f"{busi.url}/TransIn", 1).set_wait_result()
    busi.script(msg.gid, "01", ERROR)
    with bank.connection() as connection, pytest.raises(CallsNotFinished, match="status 500: something broke"):
        msg.do_and_submit_db(None, connection, lambda used: bank.adjust(used, 1, -30))
    assert bank.balances() == (9970, 10000)
    eventually(lambda: ts.calls(msg.gid).state == "done")


def test_a_topic_calls_its_subscribers(ts: tallystick.Client, broker: BrokerProcess, busi: Busi, group: str) -> None:
    with RawClient(broker.url) as http:
        for path in ("one", "two"):
            http.json("PUT", f"/v1/call-topics/{group}/subscribers", {"url": f"{busi.url}/{path}"})
    msg = Msg(ts).add_topic(group, {"amount": 30}).set_wait_result()
    msg.submit()
    assert [called.branch for called in busi.calls(msg.gid)] == ["01-01", "01-02"]


def test_an_address_needs_a_url_for_check_backs(broker: BrokerProcess, bank: Bank, busi: Busi) -> None:
    """The business dies after its commit (so it seems); the URL tells, in dtm's own protocol."""
    address = f"{broker.url}/api/dtmsvr"  # as dtm's clients are given it
    with bank.connection() as connection, pytest.raises(errors.InvalidRequest, match="query_prepared"):
        Msg(address).add(busi.url).do_and_submit_db(None, connection, lambda used: None)
    msg = Msg(address, timeout_to_fail=0.2, branch_headers={"X-Trace": "t1"}).add(f"{busi.url}/TransIn", 1)
    msg.prepare(f"{busi.url}/QueryPrepared")
    eventually(lambda: busi.calls(msg.gid, "01"))
    [asked] = busi.calls(msg.gid, "00")
    assert (asked.method, asked.path) == ("GET", "/QueryPrepared")
    assert asked.fields == {"gid": msg.gid, "trans_type": "msg", "branch_id": "00", "op": "msg"}
    assert asked.headers["x-trace"] == "t1"


def test_a_check_back_by_url_that_fails_drops_the_calls(
    broker: BrokerProcess, ts: tallystick.Client, busi: Busi
) -> None:
    msg = Msg(broker.url, timeout_to_fail=0.1).add(f"{busi.url}/TransIn", 1)
    busi.script(msg.gid, "00", FAILURE)
    msg.prepare(f"{busi.url}/QueryPrepared")
    eventually(lambda: ts.outcome(msg.gid) == "rolled_back")
    assert busi.calls(msg.gid, "01") == []


def test_the_client_answers_for_a_message_that_was_left(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    """Prepared and committed locally, and never submitted: no URL, and nobody wrote a handler."""
    committed, left = (Msg(ts, timeout_to_fail=0.2).add(f"{busi.url}/TransIn", 1) for _ in range(2))
    committed.prepare()
    with bank.connection() as connection:
        BranchBarrier("msg", committed.gid, "00", "msg").call(connection, lambda used: bank.adjust(used, 1, -30))
    left.prepare()
    eventually(lambda: ts.calls(committed.gid).state == "done")
    eventually(lambda: ts.outcome(left.gid) == "rolled_back")
    assert (len(busi.calls(committed.gid)), busi.calls(left.gid)) == (1, [])


def test_a_client_that_knows_no_database_cannot_answer(broker: BrokerProcess, bank: Bank, busi: Busi) -> None:
    with tallystick.Client(broker.url, group="g") as ts:
        with pytest.raises(errors.InvalidRequest, match="database=open_connection"):
            Msg(ts).add(busi.url).do_and_submit(None, lambda bb: None)
        # With the connection at hand it needs nothing more.
        msg = Msg(ts).add(busi.url).set_wait_result()
        with bank.connection() as connection:
            msg.do_and_submit_db(None, connection, lambda used: bank.adjust(used, 1, -30))
    assert bank.balances() == (9970, 10000)


def test_a_business_in_another_database_is_refused(ts: tallystick.Client, busi: Busi, tmp_path: Path) -> None:
    other = Bank("sqlite", tmp_path / "other.db")
    msg = Msg(ts).add(busi.url)
    with other.connection() as connection, pytest.raises(errors.InvalidRequest, match="not into"):
        msg.do_and_submit(None, lambda bb: bb.call(connection, lambda used: other.adjust(used, 1, -30)))
    assert other.balances() == (10000, 10000)


def test_a_message_without_calls_is_refused(ts: tallystick.Client) -> None:
    for act in (Msg(ts).submit, Msg(ts).prepare):
        with pytest.raises(errors.InvalidRequest, match="add"):
            act()


def test_a_business_that_never_began_is_left_to_the_check_back(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    msg = Msg(ts, timeout_to_fail=0.5).add(busi.url)
    with pytest.raises(KeyError):
        msg.do_and_submit(None, lambda bb: {}["before bb.call"])
    eventually(lambda: ts.outcome(msg.gid) == "rolled_back")
    assert busi.calls(msg.gid) == []


def test_a_submit_that_is_lost_is_left_to_the_check_back(
    broker: BrokerProcess, bank: Bank, busi: Busi, group: str
) -> None:
    """The business is done, and no broker can change that: the caller is told so, and the calls follow."""
    with (
        running_broker(check_after="500ms") as own,
        tallystick.Client(own.url, group=group, database=bank.open, timeout=0.5) as ts,
        bank.connection() as connection,
    ):

        def business(bb: BranchBarrier) -> str:
            bb.call(connection, lambda used: bank.adjust(used, 1, -30))
            own.kill()
            return "done"

        msg = Msg(ts).add(f"{busi.url}/TransIn", 1)
        assert msg.do_and_submit(None, business) == "done"
        own.restart()
        eventually(lambda: ts.calls(msg.gid).state == "done")
        waiting = Msg(ts).add(f"{busi.url}/TransIn", 1).set_wait_result(1)
        with pytest.raises(CallsNotFinished, match="the broker was not told"):
            waiting.do_and_submit(None, business)
    assert bank.balances() == (9940, 10000)
    assert len(busi.calls(msg.gid)) == 1


def test_a_message_over_grpc(ts: tallystick.Client) -> None:
    with busi_service() as service:
        plain = service.url("TransIn")
        sent = Msg(ts).add(plain, b"bytes").add(plain, ProtobufLike()).set_wait_result()
        sent.submit()
        assert [(one.branch, one.body) for one in service.calls(sent.gid)] == [("01", b"bytes"), ("02", b"message")]
        barrier = BranchBarrier.from_metadata(service.calls(sent.gid)[0].metadata.items())
        assert repr(barrier) == f"BranchBarrier('msg', {sent.gid!r}, '01', 'action')"
        left = Msg(ts, timeout_to_fail=0.2).add(plain, b"x")
        left.prepare(service.url("QueryPrepared"))
        eventually(lambda: ts.calls(left.gid).state == "done")
        assert [one.branch for one in service.calls(left.gid)] == ["00", "01"]


class ProtobufLike:
    def SerializeToString(self) -> bytes:
        return b"message"


class KnowsByHeart:
    """A truth that is in no SQL database."""

    def __init__(self) -> None:
        self.committed: set[str] = set()

    def decide(self, gid: str) -> str:
        return "committed" if gid in self.committed else "rolled_back"


@pytest.fixture
def truth() -> KnowsByHeart:
    return KnowsByHeart()


@pytest.fixture
def elsewhere(broker: BrokerProcess, group: str, truth: KnowsByHeart) -> Iterator[tallystick.Client]:
    with tallystick.Client(broker.url, group=group, deciders={"stock": truth}) as client:  # type: ignore[dict-item]
        yield client


def test_a_decider_tells_what_became_of_a_business_elsewhere(
    elsewhere: tallystick.Client, truth: KnowsByHeart, busi: Busi
) -> None:
    def deducted(bb: BranchBarrier) -> None:
        truth.committed.add(bb.gid)
        raise ConnectionError("the answer was lost")

    def refused(bb: BranchBarrier) -> None:
        raise ConnectionError("nothing was sent")

    with pytest.raises(errors.InvalidRequest, match="none of the name"):
        Msg(elsewhere, decider="other")
    for business, outcome in ((deducted, "committed"), (refused, "rolled_back")):
        msg = Msg(elsewhere, decider="stock", timeout_to_fail=60).add(f"{busi.url}/order", 1)
        with pytest.raises(ConnectionError):
            msg.do_and_submit(None, business)
        eventually(lambda gid=msg.gid, wanted=outcome: elsewhere.outcome(gid) == wanted)


async def test_messages_on_an_event_loop(broker: BrokerProcess, bank: Bank, busi: Busi, group: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(bank.url("sqlite+aiosqlite"))
    take = text("update account set balance = balance - 30 where id = 1")

    async def refuse(bb: AsyncBranchBarrier) -> None:
        raise Failure("no")

    async with (
        tallystick.AsyncClient(broker.url, group=group, database=bank.open) as ts,
        engine.connect() as connection,
    ):
        first = AsyncMsg(ts).add(f"{busi.url}/TransIn", 1).set_wait_result()
        await first.do_and_submit_db(None, connection, lambda used: used.execute(take))
        second = AsyncMsg(ts).add(f"{busi.url}/TransIn", 1).set_wait_result()
        await second.do_and_submit(None, lambda bb: bb.call(connection, lambda used: used.execute(take)))
        third = AsyncMsg(ts).add(f"{busi.url}/TransIn", 1)
        with pytest.raises(Failure):
            await third.do_and_submit(None, refuse)
        assert await ts.outcome(third.gid) == "rolled_back"
        fourth = AsyncMsg(ts).add(f"{busi.url}/TransIn", 1).set_wait_result()
        await fourth.submit()
        with sqlite3.connect(str(bank.url("sqlite")).removeprefix("sqlite:///")) as plain:
            fifth = AsyncMsg(ts).add(f"{busi.url}/TransIn", 1).set_wait_result()
            await fifth.do_and_submit_db(None, plain, lambda used: bank.adjust(used, 1, -30))
        plain.close()
    await engine.dispose()
    assert bank.balances() == (9910, 10000)
    for msg, times in ((first, 1), (second, 1), (third, 0), (fourth, 1), (fifth, 1)):
        assert len(busi.calls(msg.gid)) == times
