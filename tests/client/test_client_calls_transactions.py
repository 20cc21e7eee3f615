"""`tx.call`: the broker calls a service if and only if the local transaction commits."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from calls_support import pay_by_call
from client_support import Bank, values_in

import tallystick
from brokers import BrokerProcess, running_broker
from busi import ERROR, FAILURE, Busi, running_busi
from cutting_proxy import lossy_proxy
from eventually import eventually
from raw_client import RawClient
from tallystick import CallOptions, errors, outgoing_call

modes = pytest.mark.parametrize("mode", ["check-back", "outbox"])


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    settings = {"check_after": "500ms", "check_interval": "300ms", "call_retry_first": "100ms", "call_probe": "100ms"}
    with running_broker(**settings, call_retry_cap="300ms", call_max_attempts=50) as process:
        yield process


@pytest.fixture
def busi() -> Iterator[Busi]:
    with running_busi() as service:
        yield service


def paths(busi: Busi, gid: str) -> list[str]:
    return [called.path for called in busi.calls(gid)]


def all_done(ts: tallystick.Client, gid: str) -> None:
    eventually(lambda: ts.calls(gid).state == "done")


@modes
def test_a_block_that_ends_well_is_followed_by_its_calls(
    ts: tallystick.Client, any_bank: Bank, busi: Busi, mode: Any
) -> None:
    with any_bank.connection() as connection, ts.transaction(connection, mode=mode) as tx:
        any_bank.note(connection, "paid")
        tx.call(f"{busi.url}/trans-in?account=2", {"amount": 30}, headers={"X-Kind": "transfer"})
    all_done(ts, tx.gid)
    assert any_bank.notes() == ["paid"]
    [called] = busi.calls(tx.gid)
    assert (called.method, called.path, json.loads(called.body)) == ("POST", "/trans-in", {"amount": 30})
    asked = {"gid": tx.gid, "trans_type": "msg", "branch_id": "01", "op": "action", "account": "2"}
    assert called.fields == asked
    assert called.headers["x-kind"] == "transfer"
    assert called.headers["idempotency-key"] == f"{tx.gid}/01"


@modes
def test_an_exception_in_the_block_leaves_nobody_called(
    ts: tallystick.Client, any_bank: Bank, busi: Busi, mode: Any
) -> None:
    gid = ts.new_gid()
    with pytest.raises(ValueError, match="no money"):
        pay_by_call(ts, any_bank, [busi.url], gid=gid, mode=mode, fail=ValueError("no money"))
    ts.call(f"{busi.url}/later", gid=f"{gid}-later", wait=True)
    assert any_bank.notes() == []
    assert busi.calls(gid) == []


def test_a_prepared_call_is_made_only_after_the_commit(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    with bank.connection() as connection, ts.transaction(connection, prepare="early") as tx:
        tx.call(f"{busi.url}/trans-in", 1)
        tx.prepare()
        bank.note(connection, "paid")
        assert ts.calls(tx.gid).state == "held"
        ts.call(f"{busi.url}/meanwhile", gid=f"{tx.gid}-other", wait=True)
        assert busi.calls(tx.gid) == []
        with pytest.raises(errors.InvalidRequest, match=r"call before tx.prepare\(\)"):
            tx.call(busi.url)
    all_done(ts, tx.gid)
    assert (bank.notes(), paths(busi, tx.gid)) == (["paid"], ["/trans-in"])


@modes
def test_messages_and_calls_go_together(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, busi: Busi, topic: str, mode: Any
) -> None:
    with bank.connection() as connection, ts.transaction(connection, mode=mode) as tx:
        tx.send(topic, 1)
        tx.call(f"{busi.url}/one")
        tx.send(topic, 2)
    all_done(ts, tx.gid)
    assert values_in(broker.url, topic) == [1, 2]
    assert [(called.method, called.body) for called in busi.calls(tx.gid)] == [("GET", b"")]


def test_calls_are_made_in_order_each_after_the_success_of_the_one_before(
    ts: tallystick.Client, bank: Bank, busi: Busi
) -> None:
    gid = ts.new_gid()
    busi.script(gid, "02", ERROR, FAILURE)
    with bank.connection() as connection, ts.transaction(connection, gid=gid) as tx:
        for path in ("first", "second", "third"):
            tx.call(f"{busi.url}/{path}", path)
    all_done(ts, gid)
    assert paths(busi, gid) == ["/first", "/second", "/second", "/second", "/third"]
    assert [call.attempts for call in ts.calls(gid).calls] == [1, 3, 1]


def test_concurrent_calls_do_not_wait_for_each_other(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    gid = ts.new_gid()
    busi.script(gid, "slow", *[ERROR] * 3)
    options = CallOptions(concurrent=True)
    with bank.connection() as connection, ts.transaction(connection, gid=gid, call_options=options) as tx:
        tx.call(f"{busi.url}/first", 1, branch="slow")
        tx.call(f"{busi.url}/second", 2)
    all_done(ts, gid)
    assert paths(busi, gid)[-1] == "/first"
    assert len(busi.calls(gid, "02")) == 1
    assert ts.calls(gid).concurrent


def test_the_options_bound_the_tries(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    gid = ts.new_gid()
    busi.script(gid, "01", *[ERROR] * 10)
    options = CallOptions(retry=0.05, max_attempts=2)
    with bank.connection() as connection, ts.transaction(connection, gid=gid, call_options=options) as tx:
        tx.call(f"{busi.url}/first", 1)
    [call] = eventually(lambda: ts.calls(gid).state == "parked" and ts.calls(gid).calls)
    assert (call.attempts, call.state) == (2, "parked")
    assert "500" in call.last_error


def test_a_delayed_call_waits(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    with bank.connection() as connection, ts.transaction(connection) as tx:
        tx.call(f"{busi.url}/late", 1, delay=1.0)
    all_done(ts, tx.gid)
    [called] = busi.calls(tx.gid)
    assert called.at * 1000 - ts.calls(tx.gid).created_at >= 1000


def test_every_subscriber_of_a_topic_is_called(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, busi: Busi, topic: str
) -> None:
    with RawClient(broker.url) as http:
        for path in ("one", "two"):
            http.json("PUT", f"/v1/call-topics/{topic}/subscribers", {"url": f"{busi.url}/{path}"})
    with bank.connection() as connection, ts.transaction(connection) as tx:
        tx.call(f"topic://{topic}", 1)
    all_done(ts, tx.gid)
    assert sorted(paths(busi, tx.gid)) == ["/one", "/two"]
    with pytest.raises(errors.TallystickError, match="there is no call topic"):
        pay_by_call(ts, bank, ["topic://nobody"])
    assert bank.notes() == []


def test_what_the_broker_may_not_call_is_refused_before_the_local_commit(ts: tallystick.Client, bank: Bank) -> None:
    with pytest.raises(errors.NotAllowed):
        pay_by_call(ts, bank, ["http://192.0.2.1/"])
    assert bank.notes() == []


def test_bad_calls_are_refused_where_they_are_added(ts: tallystick.Client, bank: Bank) -> None:
    with bank.connection() as connection, ts.transaction(connection) as tx:
        for url, options in (
            ("ftp://127.0.0.1/", {}),
            ("/trans-in", {}),
            (f"http://127.0.0.1/{'x' * 2048}", {}),
            ("http://127.0.0.1/", {"protocol": "smtp"}),
            ("http://127.0.0.1/", {"branch": "a b"}),
            ("http://127.0.0.1/", {"delay": -1.0}),
            ("http://127.0.0.1/", {"headers": {"X": 1}}),
            ("http://127.0.0.1/", {"body": object()}),
        ):
            with pytest.raises(errors.InvalidRequest):
                tx.call(url, **options)
    with pytest.raises(errors.NotFound):
        ts.calls(tx.gid)


def test_consumer_dedup_takes_no_calls(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    with pytest.raises(errors.InvalidRequest, match="mode='check-back'"):
        pay_by_call(ts, bank, [busi.url], mode="consumer-dedup")
    assert bank.notes() == []


def test_too_large_a_body_is_refused_and_nothing_is_committed(ts: tallystick.Client, bank: Bank, busi: Busi) -> None:
    for mode in ("check-back", "outbox"):
        with pytest.raises(errors.TooLarge):
            pay_by_call(ts, bank, [busi.url], body=b"x" * (4 * 1024 * 1024 + 1), mode=mode)
    assert bank.notes() == []


def test_an_outbox_row_with_calls_is_sent_by_another_process(
    broker: BrokerProcess, bank: Bank, busi: Busi, group: str, topic: str
) -> None:
    with lossy_proxy(broker.port) as proxy:
        ts = tallystick.Client(proxy.url, group=group, commit_wait=0.05, timeout=0.3, wait=True)
        proxy.refusing = b"\xa4send"
        with bank.connection() as connection:
            options = CallOptions(concurrent=True)
            with ts.transaction(connection, mode="outbox", call_options=options) as tx:
                tx.send(topic, 1)
                tx.call(f"{busi.url}/trans-in", {"amount": 30})
        ts.close(timeout=0.01)
    assert busi.calls(tx.gid) == []
    with tallystick.Client(broker.url, group=group, database=bank.open, wait=True) as other:
        eventually(lambda: values_in(broker.url, topic) == [1])
        all_done(other, tx.gid)
        assert other.calls(tx.gid).concurrent
        eventually(lambda: bank.rows("select * from tallystick_outbox") == [])
    assert [json.loads(called.body) for called in busi.calls(tx.gid)] == [{"amount": 30}]


def test_a_call_without_a_transaction_is_made_once_for_a_gid(ts: tallystick.Client, busi: Busi) -> None:
    gid = ts.new_gid()
    first = ts.call(f"{busi.url}/mail", {"to": "bob"}, gid=gid, wait=True)
    second = ts.call(f"{busi.url}/mail", {"to": "bob"}, gid=gid, wait=True)
    assert (first.gid, first.duplicate, second.duplicate) == (gid, False, True)
    assert paths(busi, gid) == ["/mail"]


def test_prepare_and_commit_with_calls(ts: tallystick.Client, busi: Busi) -> None:
    gid = ts.new_gid()
    calls = [outgoing_call(f"{busi.url}/one", 1), outgoing_call(f"{busi.url}/two", 2)]
    assert not ts.prepare(gid, [], calls=calls, call_options=CallOptions(concurrent=True), check_after=60)
    assert ts.prepare(gid, [], calls=calls, call_options=CallOptions(concurrent=True), check_after=60)
    with pytest.raises(errors.DifferentContent):
        ts.prepare(gid, [], calls=calls[:1], check_after=60)
    assert ts.calls(gid).state == "held"
    assert not ts.commit(gid, wait=True)
    assert ts.commit(gid, wait=True)
    assert sorted(paths(busi, gid)) == ["/one", "/two"]


def test_prepared_calls_that_are_rolled_back_are_dropped(ts: tallystick.Client, busi: Busi) -> None:
    gid = ts.new_gid()
    ts.prepare(gid, [], calls=[outgoing_call(busi.url)], check_after=60)
    ts.rollback(gid)
    with contextlib.suppress(errors.NotFound):
        assert ts.calls(gid).state == "dropped"
    assert busi.calls(gid) == []


async def test_the_asynchronous_client_calls_too(broker: BrokerProcess, bank: Bank, busi: Busi, group: str) -> None:
    async with tallystick.AsyncClient(broker.url, group=group, wait=True) as ts:
        with contextlib.closing(sqlite3.connect(bank.path)) as connection:
            async with ts.transaction(connection, call_options=CallOptions(max_attempts=3)) as tx:
                bank.note(connection, "paid")
                tx.call(f"{busi.url}/trans-in", {"amount": 30})
                await tx.commit(wait=True)
        assert (await ts.calls(tx.gid)).state == "done"
        sent = await ts.call(f"{busi.url}/mail", b"raw", wait=5)
        assert (await ts.calls(sent.gid or "")).calls[0].attempts == 1
    assert bank.notes() == ["paid"]
    assert paths(busi, tx.gid) == ["/trans-in"]
