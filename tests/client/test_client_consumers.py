"""Subscriptions: each effect once, by an inbox row or by the queue's offset, whatever is delivered again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from client_support import Bank, messages_in

import tallystick
from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from eventually import eventually
from servers import Server
from tallystick import AsyncClient, Client, Message, errors
from tallystick.client.consumers import offsets, subscription

ways = pytest.mark.parametrize("by", ["inbox", "offset"])


@contextmanager
def running(url: str, *subscriptions: tuple[Callable[..., Any], dict[str, Any]]) -> Iterator[Client]:
    """A client whose handlers run while the test does."""
    with Client(url) as ts:
        for handler, options in subscriptions:
            ts.subscribe(**options)(handler)
        ts.start()
        try:
            yield ts
        finally:
            ts.stop()


def fill(url: str, topic: str, count: int, queues: int = 4) -> list[str]:
    """Messages 0 to count - 1; what the ledger must hold in the end."""
    with Client(url) as ts:
        ts.create_topic(topic, queues=queues)
        ts.send_many([tallystick.outgoing(topic, f"{number:03}", key=str(number % 7)) for number in range(count)])
    return [f"{number:03}" for number in range(count)]


@ways
def test_each_effect_happens_once(broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str) -> None:
    expected = fill(broker.url, topic, 60)

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)

    with running(broker.url, (handle, {"topic": topic, "group": group, "exactly_once": any_bank.open, "by": by})):
        eventually(lambda: len(any_bank.notes()) >= 60)
    assert any_bank.notes() == expected


@ways
def test_a_failing_handler_is_tried_again_and_has_one_effect(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str
) -> None:
    expected = fill(broker.url, topic, 10, queues=2)
    failed: set[str] = set()

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)
        if message.text not in failed and int(message.text) % 3 == 0:
            failed.add(message.text)
            raise RuntimeError("not today")

    with running(broker.url, (handle, {"topic": topic, "group": group, "exactly_once": any_bank.open, "by": by})) as ts:
        eventually(lambda: len(any_bank.notes()) >= 10)
        eventually(lambda: ts.stats.handled >= 10)
    assert any_bank.notes() == expected
    assert ts.stats.handler_failures == len(failed) == 4


@ways
def test_a_restarted_consumer_goes_on_where_it_was(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str
) -> None:
    fill(broker.url, topic, 20)

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)

    options = {"topic": topic, "group": group, "exactly_once": any_bank.open, "by": by}
    with running(broker.url, (handle, options)):
        eventually(lambda: len(any_bank.notes()) >= 20)
    with Client(broker.url) as ts:
        ts.send(topic, "999")
    with running(broker.url, (handle, options)):
        eventually(lambda: len(any_bank.notes()) >= 21)
        time.sleep(0.3)
    assert len(any_bank.notes()) == 21


@ways
def test_several_consumers_of_a_group_share_the_work(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str
) -> None:
    expected = fill(broker.url, topic, 80, queues=1 if by == "offset" else 4)

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)

    options = {"topic": topic, "group": group, "exactly_once": any_bank.open, "by": by, "prefetch": 2}
    with running(broker.url, (handle, options)), running(broker.url, (handle, options)):
        eventually(lambda: len(any_bank.notes()) >= 80)
    assert any_bank.notes() == expected


def test_offsets_keep_the_order_of_a_queue(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    expected = fill(broker.url, topic, 50, queues=1)
    seen: list[str] = []

    def handle(message: Message, connection: Any) -> None:
        seen.append(message.text)
        if message.text == "007" and message.attempt < 3:
            raise RuntimeError("twice not")

    options = {"topic": topic, "group": group, "exactly_once": bank.open, "by": "offset", "concurrency": 4}
    with running(broker.url, (handle, options)) as ts:
        eventually(lambda: ts.stats.handled == 50)
        eventually(lambda: ts.offsets(group, topic).lag == 0)
    assert seen == [*expected[:7], "007", "007", *expected[7:]]
    assert bank.rows("select next_offset from tallystick_offset") == [(50,)]


def test_a_lost_acknowledgement_brings_no_second_effect(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str
) -> None:
    fill(broker.url, topic, 1)

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)

    options = {"topic": topic, "group": group, "exactly_once": any_bank.open, "invisible": 1.0}
    with lossy_proxy(broker.port) as proxy, Client(proxy.url, timeout=2) as ts:
        proxy.refusing = b"\xa3ack"
        ts.subscribe(**options)(handle)
        ts.start()
        eventually(lambda: proxy.cut > 0)
        eventually(lambda: ts.stats.duplicates > 0)
        proxy.refusing = None
        # Until the circuit closes again, questions fail at once.
        eventually(lambda: ts.offsets(group, topic).lag == 0, ignoring=(errors.BrokerUnavailable,))
    assert any_bank.notes() == ["000"]


def test_a_slow_handler_keeps_its_message(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    fill(broker.url, topic, 1)
    calls: list[int] = []

    def handle(message: Message) -> None:
        calls.append(message.attempt)
        time.sleep(6.5)

    options = {"topic": topic, "group": group, "invisible": 3.0}
    with running(broker.url, (handle, options)) as first, running(broker.url, (handle, options)) as second:
        eventually(lambda: first.stats.handled + second.stats.handled == 1)
        time.sleep(0.3)
    assert calls == [1]


def test_after_the_last_attempt_a_message_goes_to_the_dead_letters(
    broker: BrokerProcess, topic: str, group: str
) -> None:
    fill(broker.url, topic, 1)

    def handle(message: Message) -> None:
        raise ValueError("cannot be read")

    with running(broker.url, (handle, {"topic": topic, "group": group, "max_attempts": 2})) as ts:
        dead = eventually(lambda: messages_in(broker.url, f"dlq.{group}"))
        assert ts.stats.handler_failures == 2
    assert [message.text for message in dead] == ["000"]
    assert dead[0].header("dead-reason") == "ValueError: cannot be read"


@ways
def test_only_messages_with_the_wanted_tags_are_handled(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: str
) -> None:
    with Client(broker.url) as ts:
        ts.create_topic(topic, queues=2)
        for number in range(12):
            ts.send(topic, f"{number:02}", tag=["red", "green", "blue"][number % 3], key=str(number))

    def handle(message: Message, connection: Any) -> None:
        bank.note(connection, message.text)

    options = {"topic": topic, "group": group, "exactly_once": bank.open, "by": by, "tags": ["red", "blue"]}
    with running(broker.url, (handle, options)):
        eventually(lambda: len(bank.notes()) >= 8)
        time.sleep(0.2)
    assert bank.notes() == [f"{number:02}" for number in range(12) if number % 3 != 1]


@ways
def test_starting_at_the_end_skips_what_was_there(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: str
) -> None:
    fill(broker.url, topic, 10, queues=1)

    def handle(message: Message, connection: Any) -> None:
        bank.note(connection, message.text)

    options = {"topic": topic, "group": group, "exactly_once": bank.open, "by": by, "start": "latest"}
    with running(broker.url, (handle, options)) as ts:
        while not bank.notes():  # what is sent before it has found its place is not new to it
            ts.send(topic, "new")
            time.sleep(0.1)
    assert set(bank.notes()) == {"new"}


def test_ordered_delivery_waits_for_the_message_before(broker: BrokerProcess, topic: str, group: str) -> None:
    with Client(broker.url) as ts:
        ts.create_topic(topic, queues=2)
        for number in range(20):
            ts.send(topic, number, key=str(number % 2))
    done: dict[str, list[int]] = {"0": [], "1": []}
    failed: list[int] = []

    def handle(message: Message) -> None:
        if message.json() == 5 and not failed:
            failed.append(5)
            raise RuntimeError("not yet")
        time.sleep(0.01)
        done[message.key or ""].append(message.json())

    with running(broker.url, (handle, {"topic": topic, "group": group, "ordered": True})) as ts:
        eventually(lambda: ts.stats.handled == 20)
    assert done == {"0": list(range(0, 20, 2)), "1": list(range(1, 20, 2))}


@ways
def test_a_topic_may_come_into_being_later(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(message: Message, connection: Any) -> None:
        bank.note(connection, message.text)

    with running(broker.url, (handle, {"topic": topic, "group": group, "exactly_once": bank.open, "by": by})) as ts:
        time.sleep(0.3)
        ts.send(topic, "first")
        eventually(lambda: bank.notes() == ["first"])
    assert caplog.records == []


def test_a_plain_handler_without_a_database(broker: BrokerProcess, topic: str, group: str) -> None:
    expected = fill(broker.url, topic, 30)
    seen: list[str] = []
    with running(broker.url, (lambda message: seen.append(message.text), {"topic": topic, "group": group})) as ts:
        eventually(lambda: ts.stats.handled == 30)
    assert sorted(seen) == expected


def test_stopping_finishes_what_is_at_work_and_gives_the_rest_back(
    broker: BrokerProcess, topic: str, group: str
) -> None:
    fill(broker.url, topic, 20)
    started, seen = threading.Event(), []

    def slow(message: Message) -> None:
        started.set()
        time.sleep(0.4)
        seen.append(message.text)

    with Client(broker.url) as ts:
        ts.subscribe(topic, group=group, concurrency=2)(slow)
        ts.start()
        started.wait(10)
        ts.stop()
        assert 1 <= len(seen) < 20
        assert ts.stats.handled == len(seen)
    with Client(broker.url) as other:
        rest = other.receive(topic, group, max=100, wait=2)
        while len(rest) + len(seen) < 20:
            rest += other.receive(topic, group, max=100, wait=2)
        assert sorted(seen + [message.text for message in rest]) == [f"{number:03}" for number in range(20)]


class CutsOff(sqlite3.Connection):
    """Breaks at the commits that are named, before anything is written."""

    at = 0

    def commit(self) -> None:
        CutsOff.at += 1
        if CutsOff.at % 4 == 0:
            super().close()
            raise sqlite3.OperationalError("the connection broke")
        super().commit()


@ways
def test_a_broken_database_connection_is_opened_again(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: str
) -> None:
    expected = fill(broker.url, topic, 15, queues=1)

    def handle(message: Message, connection: Any) -> None:
        bank.note(connection, message.text)

    def opening() -> sqlite3.Connection:
        return sqlite3.connect(bank.path, factory=CutsOff, timeout=10)

    options = {"topic": topic, "group": group, "exactly_once": opening, "by": by, "concurrency": 1}
    with running(broker.url, (handle, options)):
        eventually(lambda: len(bank.notes()) >= 15)
    assert bank.notes() == expected


# Asynchronous handlers


@ways
async def test_asynchronous_handlers_with_an_asynchronous_driver(
    broker: BrokerProcess, postgres: Server, topic: str, group: str, by: Any
) -> None:
    bank = Bank("postgresql", postgres)
    expected = await asyncio.to_thread(fill, broker.url, topic, 40)
    async with AsyncClient(broker.url) as ts:

        @ts.subscribe(
            topic, group=group, by=by, exactly_once=lambda: psycopg.AsyncConnection.connect(**bank.parameters())
        )
        async def handle(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
            await connection.execute("insert into ledger (note) values (%s)", (message.text,))
            if message.text == "011" and message.attempt == 1:
                raise RuntimeError("once not")

        await ts.start()
        while ts.stats.handled < 40:
            await asyncio.sleep(0.02)
        await ts.stop()
        assert ts.stats.handler_failures == 1
    assert bank.notes() == expected


async def test_asynchronous_handlers_may_use_a_synchronous_connection(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    expected = await asyncio.to_thread(fill, broker.url, topic, 20)
    async with AsyncClient(broker.url) as ts:

        @ts.subscribe(topic, group=group, exactly_once=bank.open, concurrency=4)
        async def handle(message: Message, connection: sqlite3.Connection) -> None:
            bank.note(connection, message.text)
            await asyncio.sleep(0.005)  # with the write lock held: a second handler must not wait for it on this thread

        await ts.start()
        while ts.stats.handled < 20:
            await asyncio.sleep(0.02)
        assert ts.stats.handler_failures == 0
    assert bank.notes() == expected


async def test_run_stays_until_stop_is_called(broker: BrokerProcess, topic: str, group: str) -> None:
    await asyncio.to_thread(fill, broker.url, topic, 3)
    async with AsyncClient(broker.url) as ts:

        @ts.subscribe(topic, group=group)
        async def handle(message: Message) -> None:
            if ts.stats.handled == 2:
                asyncio.get_running_loop().call_later(0.1, lambda: asyncio.ensure_future(ts.stop()))

        await asyncio.wait_for(ts.run(), 10)
        assert ts.stats.handled == 3


# Mistakes


def test_subscriptions_that_cannot_work_are_refused(broker: BrokerProcess, bank: Bank) -> None:
    def plain(message: Message) -> None: ...

    def with_connection(message: Message, connection: Any) -> None: ...

    def odd() -> None: ...

    async def asynchronous(message: Message) -> None: ...

    with Client(broker.url) as ts:
        for handler, options, reason in [
            (plain, {"group": None}, "group"),
            (plain, {"by": "magic"}, "by"),
            (plain, {"by": "offset"}, "exactly_once"),
            (with_connection, {}, "exactly_once"),
            (plain, {"concurrency": 0}, "concurrency"),
            (plain, {"group": "no spaces"}, "group"),
            (plain, {"by": "offset", "exactly_once": bank.open, "max_attempts": 3}, "max_attempts"),
            (odd, {}, "handler takes"),
            (asynchronous, {}, "AsyncClient"),
        ]:
            with pytest.raises(errors.InvalidRequest, match=reason):
                ts.subscribe("topic", **{"group": "g", **options})(handler)  # type: ignore[arg-type]


def test_a_handler_may_be_any_callable(bank: Bank) -> None:
    class Handler:
        def __call__(self, message: Message, connection: Any) -> None: ...

    made = subscription.checked_subscription(
        asynchronous=False, topic="t", group="g", handler=Handler(), exactly_once=bank.open
    )
    assert made.with_connection


def test_an_offset_that_could_not_be_shown_is_shown_later(
    broker: BrokerProcess,
    bank: Bank,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise a group that has read everything would seem to be behind until the next message comes."""
    fill(broker.url, topic, 3, queues=1)
    monkeypatch.setattr(offsets, "WAIT_SECONDS", 0.2)
    caplog.set_level("DEBUG", "tallystick.client")

    def handle(message: Message, connection: Any) -> None:
        bank.note(connection, message.text)

    with lossy_proxy(broker.port) as proxy, Client(proxy.url, timeout=1) as ts:
        proxy.refusing = b"mirror"
        ts.subscribe(topic, group=group, exactly_once=bank.open, by="offset")(handle)
        ts.start()
        eventually(lambda: "an offset could not be shown" in caplog.text)
        proxy.refusing = None
        eventually(
            lambda: ts.offsets(group, topic).queues[0].offset == 3,
            "an offset that is shown",
            ignoring=(errors.BrokerUnavailable,),  # until the circuit is closed again
        )
    assert bank.notes() == ["000", "001", "002"]
