"""The plain operations: send, fetch, receive, offsets, topics, and transactions by hand."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import httpx
import pytest
from client_support import Bank, messages_in, values_in

import tallystick
from brokers import BrokerProcess, running_broker
from cutting_proxy import lossy_proxy
from eventually import eventually
from tallystick import AsyncClient, Client, errors, outgoing
from tallystick.core.ops import PartRef

# Sending


def test_values_may_be_bytes_text_or_anything_that_is_json(ts: Client, broker: BrokerProcess, topic: str) -> None:
    ts.create_topic(topic, queues=1)
    for value in (b"\x00\xff", "grün", {"a": [1, None]}, bytearray(b"x")):
        ts.send(topic, value)
    messages = messages_in(broker.url, topic)
    assert [message.value for message in messages] == [b"\x00\xff", "grün".encode(), b'{"a":[1,null]}', b"x"]
    assert messages[1].text == "grün"
    assert messages[2].json() == {"a": [1, None]}
    assert len({message.id for message in messages}) == 4


def test_a_confirmed_message_tells_its_place(ts: Client, topic: str) -> None:
    ts.create_topic(topic, queues=2)
    first, second = ts.send(topic, 1, key="a"), ts.send(topic, 2, key="a")
    assert first.positions[0].topic == topic
    assert first.positions[0].queue == second.positions[0].queue
    assert second.positions[0].offset == first.positions[0].offset + 1
    assert (first.gid is not None, ts.send(topic, 3, level=1).gid) == (True, None)


def test_level_2_drops_what_has_the_same_gid(ts: Client, broker: BrokerProcess, topic: str) -> None:
    gid = ts.new_gid()
    assert not ts.send(topic, 1, gid=gid).duplicate
    assert ts.send(topic, 1, gid=gid).duplicate
    assert values_in(broker.url, topic) == [1]


def test_level_1_may_arrive_twice_but_not_never(broker: BrokerProcess, topic: str) -> None:
    with lossy_proxy(broker.port) as proxy, Client(proxy.url) as ts:
        proxy.losing, proxy.lose_at_most = b"\xa4send", 1
        ts.send(topic, 1, level=1)
    assert values_in(broker.url, topic) == [1, 1]


def test_level_0_is_not_waited_for_and_keeps_its_order(broker: BrokerProcess, topic: str) -> None:
    with Client(broker.url) as ts:
        ts.create_topic(topic, queues=1)
        for number in range(500):
            ts.send(topic, number, level=0)
    assert [message.json() for message in messages_in(broker.url, topic)] == list(range(500))


def test_level_0_never_raises_and_never_blocks_for_want_of_a_broker(topic: str) -> None:
    with running_broker() as broker, Client(broker.url, timeout=6) as ts:
        ts.info()
        os.kill(broker.pid, signal.SIGSTOP)
        began = time.monotonic()
        for number in range(50):
            ts.send(topic, number, level=0)
        assert time.monotonic() - began < 5
        eventually(lambda: ts.stats.unconfirmed_failed == 50)
        os.kill(broker.pid, signal.SIGCONT)


def test_levels_and_gids_that_do_not_fit_are_refused(ts: Client, topic: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="level"):
        ts.send(topic, 1, level=3)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest, match="level 2"):
        ts.send(topic, 1, level=1, gid="g")


def test_a_delayed_message_comes_later(ts: Client, broker: BrokerProcess, topic: str) -> None:
    ts.send(topic, "by delay", delay=1.5)
    ts.send(topic, "by time", deliver_at=time.time() + 1.5)
    assert messages_in(broker.url, topic) == []
    eventually(lambda: len(messages_in(broker.url, topic)) == 2)


@pytest.mark.parametrize("hours", [-2, 2])
@pytest.mark.parametrize("mode", [None, "check-back", "outbox"])
def test_a_delay_does_not_depend_on_the_producers_clock(
    ts: Client, broker: BrokerProcess, bank: Bank, topic: str, monkeypatch: pytest.MonkeyPatch, hours: int, mode: Any
) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + hours * 3_600_000_000_000)
    for value, delay in (("soon", 0.2), ("in an hour", 3_600)):
        if mode is None:
            ts.send(topic, value, delay=delay)
        else:
            with bank.connection() as connection, ts.transaction(connection, mode=mode) as tx:
                bank.note(connection, value)
                tx.send(topic, value, delay=delay)
    eventually(lambda: [one.text for one in messages_in(broker.url, topic)] == ["soon"])
    assert [one.text for one in messages_in(broker.url, topic)] == ["soon"]


def test_a_delay_that_is_none_is_refused() -> None:
    for delay in (-1, 367 * 24 * 3_600, float("nan")):
        with pytest.raises(errors.InvalidRequest, match="delay"):
            outgoing("topic", 1, delay=delay)


def test_many_threads_share_a_client(broker: BrokerProcess, topic: str) -> None:
    with Client(broker.url) as ts:

        def work(worker: int) -> None:
            for turn in range(50):
                ts.send(topic, worker * 100 + turn)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ts._core.latest is not None
        assert ts._core.latest.brokers.for_new()[0].ops.requests < 400
    assert values_in(broker.url, topic) == sorted(worker * 100 + turn for worker in range(8) for turn in range(50))


# Reading


def test_fetch_reads_on_and_waits(ts: Client, topic: str) -> None:
    ts.create_topic(topic, queues=1)
    ts.send_many([outgoing(topic, number) for number in range(10)])
    first = ts.fetch(topic, 0, 0, max=4)
    assert [message.json() for message in first.messages] == [0, 1, 2, 3]
    assert (first.next, first.end) == (4, 10)
    rest = ts.fetch(topic, 0, first.next)
    assert [message.offset for message in rest.messages] == list(range(4, 10))
    threading.Timer(0.3, lambda: ts.send(topic, "late")).start()
    assert [message.text for message in ts.fetch(topic, 0, 10, wait=10).messages] == ["late"]
    with pytest.raises(errors.OffsetOutOfRange):
        ts.fetch(topic, 0, 99)


def test_receive_ack_nack_renew(ts: Client, topic: str, group: str) -> None:
    ts.create_topic(topic, queues=1)
    ts.send_many([outgoing(topic, number) for number in range(3)])
    messages = ts.receive(topic, group, max=10, wait=2, invisible=60)
    assert [(message.json(), message.attempt, message.group) for message in messages] == [
        (0, 1, group),
        (1, 1, group),
        (2, 1, group),
    ]
    assert ts.receive(topic, group) == []
    ts.ack(group, messages[0])
    ts.renew(group, messages[1:], invisible=30)
    ts.nack(group, messages[1], delay=0.0)
    again = ts.receive(topic, group, wait=2)
    assert [(message.json(), message.attempt) for message in again] == [(1, 2)]
    with pytest.raises(errors.StaleLease) as stale:
        ts.ack(group, [messages[1], messages[2]])
    assert stale.value.extra["stale"] == [messages[1].receipt]
    ts.nack(group, again, dead=True, reason="enough")
    assert ts.offsets(group, topic).lag == 0


def test_a_lease_is_renewed_for_12_hours_at_most(ts: Client, broker: BrokerProcess, topic: str, group: str) -> None:
    ts.send(topic, 1)
    (message,) = ts.receive(topic, group, wait=2)
    ts.renew(group, message, invisible=12 * 3600)
    with pytest.raises(errors.InvalidRequest) as refused:
        ts.renew(group, message, invisible=12 * 3600 + 1)
    assert refused.value.field == "invisible_ms"
    body = {"receipts": [message.receipt], "invisible_ms": 13 * 3600 * 1000}
    answer = httpx.post(f"{broker.url}/v1/groups/{group}/renew", json=body)
    assert (answer.status_code, answer.json()["field"]) == (400, "invisible_ms")


def test_offsets_kept_by_the_broker(ts: Client, topic: str, group: str) -> None:
    ts.create_topic(topic, queues=2)
    ts.send_many([outgoing(topic, number, key=str(number)) for number in range(20)])
    ts.commit_offsets(group, topic, {0: 3, 1: 1})
    view = ts.offsets(group, topic)
    assert {queue.queue: queue.offset for queue in view.queues} == {0: 3, 1: 1}
    assert view.lag == 16
    with pytest.raises(errors.OffsetMoved):
        ts.commit_offsets(group, topic, {0: 5}, expected={0: 2})
    ts.commit_offsets(group, topic, {0: 5}, expected={0: 3})
    assert ts.offsets(group, topic).lag == 14


def test_a_group_with_leases_is_moved(ts: Client, topic: str, group: str) -> None:
    ts.create_topic(topic, queues=1)
    ts.send_many([outgoing(topic, number) for number in range(4)])
    middle = ts.fetch(topic, 0, 0).messages[-1].stored_at / 1000 + 0.001
    time.sleep(0.01)
    ts.send_many([outgoing(topic, number) for number in range(4, 6)])
    held = ts.receive(topic, group)
    with pytest.raises(errors.Conflict, match="groups reset"):
        ts.commit_offsets(group, topic, {0: 2})
    assert ts.reset_group(group, topic, to="earliest").lag == 6
    with pytest.raises(errors.StaleLease):
        ts.ack(group, held)
    assert ts.reset_group(group, topic, to="latest").lag == 0
    assert ts.receive(topic, group) == []
    ts.reset_group(group, topic, offsets={0: 5})
    assert [message.json() for message in ts.receive(topic, group)] == [5]
    ts.reset_group(group, topic, at=middle)
    assert [message.json() for message in ts.receive(topic, group)] == [4, 5]
    with pytest.raises(errors.InvalidRequest, match="exactly one of to, offsets and at"):
        ts.reset_group(group, topic)
    with pytest.raises(errors.OffsetOutOfRange):
        ts.reset_group(group, topic, offsets={0: 7})


async def test_stored_offsets_are_moved_and_whoever_expects_the_old_ones_is_told(
    broker: BrokerProcess, topic: str, group: str
) -> None:
    async with AsyncClient(broker.url) as ts:
        await ts.create_topic(topic, queues=1)
        await ts.send_many([outgoing(topic, number) for number in range(4)])
        await ts.commit_offsets(group, topic, {0: 3})
        assert (await ts.reset_group(group, topic, to="earliest")).queues[0].offset == 0
        with pytest.raises(errors.OffsetMoved):
            await ts.commit_offsets(group, topic, {0: 4}, expected={0: 3})


def test_offsets_in_the_consumers_own_database_are_not_moved_here(
    ts: Client, bank: Bank, topic: str, group: str
) -> None:
    ts.create_topic(topic, queues=1)
    ts.subscribe(topic, group=group, exactly_once=bank.open, by="offset")(lambda message, conn: None)
    ts.send(topic, 1)
    ts.start()
    eventually(lambda: ts.offsets(group, topic).queues[0].offset == 1)
    with pytest.raises(errors.Conflict, match="tallystick_offset"):
        ts.reset_group(group, topic, to="earliest")


def test_topics(ts: Client, topic: str) -> None:
    with pytest.raises(errors.NotFound):
        ts.topic(topic)
    assert ts.create_topic(topic, queues=3, retention=3600).queues == 3
    assert ts.create_topic(topic, queues=5).queues == 5
    assert topic in [view.name for view in ts.topics()]
    view = ts.topic(topic)
    assert (view.retention_ms, view.starts, view.ends) == (3_600_000, [0] * 5, [0] * 5)
    with pytest.raises(errors.TallystickError, match="queues"):
        ts.create_topic(topic, queues=2)


# Transactions by hand


def test_outcomes_are_assigned_once(ts: Client, broker: BrokerProcess, topic: str) -> None:
    gid = ts.new_gid()
    assert ts.outcome(gid) is None
    with pytest.raises(errors.NotFound):
        ts.transaction_state(gid)
    assert ts.prepare(gid, [outgoing(topic, 1)], check_after=60) is False
    assert ts.transaction_state(gid).state == "prepared"
    assert ts.outcome(gid) is None
    assert ts.commit(gid) is False
    assert ts.commit(gid) is True
    with pytest.raises(errors.OutcomeConflict):
        ts.rollback(gid)
    with pytest.raises(errors.AlreadyResolved):
        ts.prepare(gid, [outgoing(topic, 1)])
    assert ts.outcome(gid) == "committed"
    assert values_in(broker.url, topic) == [1]


def test_a_repeated_prepare_must_be_the_same(ts: Client, topic: str) -> None:
    gid, message = ts.new_gid(), outgoing(topic, 1)
    ts.prepare(gid, [message], check_after=60)
    assert ts.prepare(gid, [message], check_after=60) is True
    with pytest.raises(errors.DifferentContent):
        ts.prepare(gid, [outgoing(topic, 2)], check_after=60)
    ts.rollback(gid)


def test_a_commit_claims_its_parts(ts: Client, broker: BrokerProcess, topic: str) -> None:
    gid = ts.new_gid()
    parts = [f"{gid}:{number}" for number in range(3)]
    for number, part in enumerate(parts):
        ts.prepare_part(part, [outgoing(topic, number)], gid=gid, ttl=60)
    with pytest.raises(errors.PartUnavailable):
        ts.commit(gid, [PartRef("missing", 1)])
    ts.commit(gid, [PartRef(part, 1) for part in parts[:2]])
    assert values_in(broker.url, topic) == [0, 1]


def test_checks_may_be_answered_by_hand(ts: Client, broker: BrokerProcess, topic: str, group: str) -> None:
    gid = ts.new_gid()
    ts.prepare(gid, [outgoing(topic, 1)], check_after=0.0, source="ledger")
    checks = eventually(lambda: ts.poll_checks(group, wait=2))
    assert [(check.gid, check.source) for check in checks] == [(gid, "ledger")]
    ts.answer_checks({gid: "committed"})
    assert ts.outcome(gid) == "committed"
    assert values_in(broker.url, topic) == [1]


def test_the_broker_tells_about_itself(ts: Client, broker: BrokerProcess) -> None:
    info = ts.info()
    assert info.version
    assert info.dedup_retention_ms == 7 * 24 * 3600 * 1000
    assert ts.new_gid().startswith(f"{info.store}-")


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings in ({"timeout": 0}, {"commit_wait": -1}, {"max_in_flight": 0}, {"group": "no spaces"}):
        with pytest.raises(errors.InvalidRequest):
            Client("http://127.0.0.1:7440", **settings)  # type: ignore[arg-type]
    with pytest.raises(errors.TallystickError, match="table"):
        Client(barrier_table="barrier; drop table x")


def test_something_else_behind_the_address_is_not_taken_for_a_broker(topic: str) -> None:
    import http.server

    class Page(http.server.BaseHTTPRequestHandler):
        def _page(self) -> None:
            body = b"<html>hello</html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._page()

        do_GET = _page

        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Client(f"http://127.0.0.1:{server.server_port}", timeout=0.5) as ts:
        with pytest.raises(errors.BrokerUnavailable, match="not a Tallystick broker"):
            ts.info()
        with pytest.raises(errors.BrokerUnavailable):
            ts.send(topic, 1)
    server.shutdown()
    server.server_close()


def test_a_call_from_the_clients_own_loop_is_refused(ts: Client) -> None:
    async def inside() -> None:
        ts.info()

    with pytest.raises(errors.TallystickError, match="would wait for itself"):
        ts._call(inside)


def test_the_public_names() -> None:
    assert set(tallystick.__all__) >= {"AsyncClient", "Client", "Message", "errors", "TallystickError"}
    for name in tallystick.__all__:
        assert getattr(tallystick, name).__doc__
