"""Consumer-side dedup: prepared messages reach the consumer, which waits for their outcome in its own database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from client_support import Bank, messages_in, pay

import tallystick
from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from eventually import eventually
from tallystick import Client, Message, errors
from tallystick.client.transactions import outbox
from tallystick.client.transactions.prepared import ID, SIGN, outcome, outcome_gid, prepared

ways = pytest.mark.parametrize("by", ["inbox", "offset"])


@contextmanager
def consumer(
    url: str, bank: Bank, topic: str, group: str, by: Any, ordered: bool = False
) -> Iterator[tuple[Client, list[Message]]]:
    seen: list[Message] = []
    with Client(url) as ts:

        @ts.subscribe(topic, group=group, exactly_once=bank.open, by=by, ordered=ordered)
        def handle(message: Message, connection: Any) -> None:
            bank.note(connection, message.text)
            seen.append(message)

        ts.start()
        yield ts, seen


@pytest.fixture
def shop(tmp_path: Any) -> Bank:
    """The consumer's database."""
    return Bank("sqlite", tmp_path / "shop.db")


@ways
def test_a_committed_message_has_its_effect_and_a_rolled_back_one_has_none(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, shop: Bank, topic: str, group: str, by: str
) -> None:
    pay(ts, any_bank, topic, "good", mode="consumer-dedup")
    with pytest.raises(ValueError, match="no money"):
        pay(ts, any_bank, topic, "bad", mode="consumer-dedup", note="never", fail=ValueError("no money"))
    with consumer(broker.url, shop, topic, group, by) as (_, seen):
        eventually(lambda: shop.notes())
        pay(ts, any_bank, topic, "later", mode="consumer-dedup")
        eventually(lambda: len(shop.notes()) == 2)
    assert shop.notes() == ["good", "later"]
    assert any_bank.notes() == ["paid", "paid"]
    assert any(message.headers is None and message.key is None for message in seen)
    assert shop.rows("select * from tallystick_prepared") == []
    eventually(lambda: any_bank.rows("select gid from tallystick_outbox") == [])


def test_message_and_outcome_are_in_the_same_queue_and_in_order(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str
) -> None:
    ts.create_topic(topic, queues=8)
    for number in range(10):
        pay(ts, bank, topic, str(number), mode="consumer-dedup")
    by_id: dict[str, list[tuple[int, int, str]]] = {}
    for message in messages_in(broker.url, topic):
        by_id.setdefault(message.header(ID), []).append((message.queue, message.offset, message.header(SIGN)))
    assert len(by_id) == 10
    for places in by_id.values():
        (first_queue, first_offset, first), (second_queue, second_offset, second) = sorted(places)
        assert (first, second) == ("prepare", "commit")
        assert first_queue == second_queue
        assert first_offset < second_offset


@ways
def test_repeated_and_late_marks_have_no_second_effect(
    ts: tallystick.Client, broker: BrokerProcess, shop: Bank, topic: str, group: str, by: str
) -> None:
    """Sent without the broker's own dedup, as over a broker that has none: only the consumer stands in the way."""
    message, gid = [tallystick.outgoing(topic, "once", key="k")], "gid-1"
    marks = {sign: outcome(message, gid, sign) for sign in ("commit", "rollback")}  # type: ignore[arg-type]
    for sent in (prepared(message, gid), prepared(message, gid), marks["commit"]):
        ts.send_many(sent, level=1)
    with consumer(broker.url, shop, topic, group, by) as (client, seen):
        eventually(lambda: shop.notes() == ["once"])
        for sent in (marks["commit"], prepared(message, gid), marks["commit"], marks["rollback"]):
            ts.send_many(sent, level=1)
        eventually(lambda: client.stats.duplicates >= 3)
        time.sleep(0.2)
        assert len(seen) == 1
    assert shop.notes() == ["once"]


@ways
def test_a_commit_after_a_rollback_has_no_effect(
    ts: tallystick.Client, broker: BrokerProcess, shop: Bank, topic: str, group: str, by: str
) -> None:
    """No sane producer says both; whoever reads in order goes by the first."""
    message, gid = [tallystick.outgoing(topic, "no", key="k")], "gid-2"
    for sent in (prepared(message, gid), outcome(message, gid, "rollback"), outcome(message, gid, "commit")):
        ts.send_many(sent, level=1)
    with consumer(broker.url, shop, topic, group, by, ordered=True) as (client, _):
        eventually(lambda: client.stats.duplicates >= 1)
    assert shop.notes() == []
    assert shop.rows("select * from tallystick_prepared") == []


def test_an_outcome_that_overtakes_its_message_waits_for_it(
    ts: tallystick.Client, broker: BrokerProcess, shop: Bank, topic: str, group: str
) -> None:
    """Leases are handled in parallel, so this can happen there even within a queue."""
    message, gid = [tallystick.outgoing(topic, "late", key="k")], "gid-3"
    ts.send_many(outcome(message, gid, "commit"), level=1)
    with consumer(broker.url, shop, topic, group, "inbox") as (client, _):
        time.sleep(0.3)
        assert shop.notes() == []
        ts.send_many(prepared(message, gid), level=1)
        eventually(lambda: shop.notes() == ["late"])
        assert client.stats.handler_failures == 0


@pytest.mark.fault
def test_the_re_driver_sends_an_outcome_that_its_process_could_not(
    broker: BrokerProcess, bank: Bank, shop: Bank, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "LEFT_BEHIND_SECONDS", 0.5)
    with lossy_proxy(broker.port) as proxy:
        dying = Client(proxy.url, commit_wait=0.01, timeout=0.5)
        proxy.refusing = b":commit"
        gid = pay(dying, bank, topic, "kept", mode="consumer-dedup")
        dying.close(timeout=0.01)
        assert bank.rows("select gid from tallystick_outbox") == [(outcome_gid(gid, "commit"),)]
    with (
        consumer(broker.url, shop, topic, group, "inbox"),
        Client(broker.url, database=bank.open),
    ):
        eventually(lambda: shop.notes() == ["kept"])
    eventually(lambda: bank.rows("select gid from tallystick_outbox") == [])


def test_without_a_database_a_consumer_never_sees_an_undecided_message(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    pay(ts, bank, topic, "undecided", mode="consumer-dedup")
    seen: list[str] = []
    with Client(broker.url) as other:
        other.subscribe(topic, group=group, max_attempts=1)(lambda message: seen.append(message.text))
        other.start()
        dead = eventually(lambda: messages_in(broker.url, f"dlq.{group}"))
    assert seen == []
    assert "exactly_once" in dead[0].header("dead-reason")


def test_every_attempt_has_a_gid_of_its_own(ts: tallystick.Client, bank: Bank, topic: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="every attempt needs a gid of its own"):
        pay(ts, bank, topic, 1, mode="consumer-dedup", gid="order-1")


def test_a_delayed_message_is_refused_in_this_mode(ts: tallystick.Client, bank: Bank, topic: str) -> None:
    with bank.connection() as connection:
        tx = ts.transaction(connection, mode="consumer-dedup")
        tx.__enter__()
        tx.send(topic, 1, delay=5)
        with pytest.raises(errors.InvalidRequest, match="delayed"):
            tx.__exit__(None, None, None)
    assert bank.notes() == []
