"""Several messages in one local transaction: few commits, each effect once, and one failure is nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from client_support import Bank, messages_in, pay, values_in

import tallystick
from brokers import BrokerProcess
from eventually import eventually, eventually_async
from servers import Server
from tallystick import AsyncClient, Client, Message, errors
from tallystick.barrier.adapters.recognition import adapt_sync
from tallystick.client.consumers.effects import Desk, Handling, handle_once
from tallystick.client.consumers.marks import InboxRows
from tallystick.client.consumers.subscription import checked_subscription
from tallystick.client.transactions.local import LocalTransaction
from tallystick.client.transactions.prepared import outcome, prepared
from tallystick.client.transactions.script import Script, play_sync

ways = pytest.mark.parametrize("by", ["inbox", "offset"])

COUNT, BATCH = 60, 20
NOBODY: Any = None


def fill(url: str, topic: str, count: int = COUNT) -> list[str]:
    """Messages in one queue; what the ledger must hold in the end."""
    with Client(url) as ts:
        ts.create_topic(topic, queues=1)
        ts.send_many([tallystick.outgoing(topic, f"{number:03}") for number in range(count)])
    return [f"{number:03}" for number in range(count)]


@contextlib.contextmanager
def running(
    url: str, bank: Bank, topic: str, group: str, by: str, handler: Callable[..., Any], **options: Any
) -> Iterator[Client]:
    with Client(url, group=group) as ts:
        options = {"exactly_once": bank.open, "batch": BATCH, "concurrency": 1, **options}
        ts.subscribe(topic, by=by, **options)(handler)
        ts.start()
        try:
            yield ts
        finally:
            ts.stop()


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with every local transaction that is about to be committed."""
    seen: list[str] = []
    commit = LocalTransaction.commit

    def counted(self: LocalTransaction) -> Script[None]:
        seen.append(self._token)
        return commit(self)

    monkeypatch.setattr(LocalTransaction, "commit", counted)
    return seen


@ways
def test_a_batch_is_one_transaction_and_each_effect_is_there_once(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str, commits: list[str]
) -> None:
    expected = fill(broker.url, topic)
    seen: list[str] = []

    def handle(message: Message, connection: Any) -> None:
        seen.append(message.text)
        any_bank.note(connection, message.text)

    with running(broker.url, any_bank, topic, group, by, handle) as ts:
        eventually(lambda: ts.stats.handled == COUNT)
        eventually(lambda: ts.offsets(group, topic).lag == 0)
    assert any_bank.notes() == seen == expected
    assert ts.stats.batches_undone == 0
    # By offset one more, to read where it begins. What is received first is all there is room for, in full batches.
    assert len(commits) <= COUNT / BATCH + 2


@ways
def test_one_failure_in_a_batch_is_nobody_elses(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str
) -> None:
    expected = fill(broker.url, topic)
    tried: Counter[str] = Counter()

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)
        tried[message.text] += 1
        if message.text == "027" and tried["027"] <= 3:
            raise RuntimeError("not today")

    with running(broker.url, any_bank, topic, group, by, handle) as ts:
        eventually(lambda: ts.stats.handled == COUNT)
        assert ts.stats.batches_undone == 1, "once it has failed it is tried by itself"
        assert ts.stats.handler_failures == 2, "in the batch it is not told from others"
    assert any_bank.notes() == expected
    assert tried["027"] == 4
    assert max(count for text, count in tried.items() if text != "027") == 2


def test_a_message_that_always_fails_goes_to_the_dead_letters_alone(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str
) -> None:
    expected = fill(broker.url, topic)
    expected.remove("027")

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)
        if message.text == "027":
            raise ValueError("poison")

    with running(broker.url, any_bank, topic, group, "inbox", handle, max_attempts=2):
        dead = eventually(lambda: messages_in(broker.url, f"dlq.{group}"))
        eventually(lambda: len(any_bank.notes()) == COUNT - 1)
    assert [message.text for message in dead] == ["027"]
    assert any_bank.notes() == expected


def test_offsets_keep_the_order_of_a_queue(broker: BrokerProcess, any_bank: Bank, topic: str, group: str) -> None:
    fill(broker.url, topic)
    done: list[list[str]] = [[]]

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)
        done[-1].append(message.text)
        if message.text == "027" and len(done) < 4:
            done.append([])
            raise RuntimeError("not yet")

    with running(broker.url, any_bank, topic, group, "offset", handle) as ts:
        eventually(lambda: ts.stats.handled == COUNT)
    expected = [f"{number:03}" for number in range(COUNT)]
    # The batch; then its messages one by one; then the one that failed by itself, twice.
    assert done == [expected[:28], expected[20:28], expected[27:28], expected[27:]]


def test_messages_with_a_row_are_skipped_inside_a_batch(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str
) -> None:
    fill(broker.url, topic)
    known = [message.id for message in messages_in(broker.url, topic) if int(message.text) % 7 == 0]
    for one in known:
        any_bank.run(
            "insert into tallystick_inbox (consumer_group, message_id, created_at) "
            f"values ('{group}', '{one}', '2026-01-01 00:00:00')"
        )

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)

    with running(broker.url, any_bank, topic, group, "inbox", handle) as ts:
        eventually(lambda: ts.stats.handled + ts.stats.duplicates == COUNT)
        assert (ts.stats.duplicates, ts.stats.batches_undone) == (len(known), 0)
    assert any_bank.notes() == [f"{number:03}" for number in range(COUNT) if number % 7]


def test_a_message_that_is_twice_in_a_batch_has_one_effect(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str
) -> None:
    fill(broker.url, topic, 2)
    first, second = messages_in(broker.url, topic)

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)

    subscription = checked_subscription(
        asynchronous=False, topic=topic, group=group, handler=handle, exactly_once=any_bank.open, batch=4
    )
    with any_bank.connection() as connection:
        desk = Desk(connection, adapt_sync(connection))
        script = handle_once(subscription, [first, second, first], desk, NOBODY, InboxRows(group))
        verdicts = play_sync(script, desk.adapter, lambda: NOBODY)
    assert verdicts == [Handling.HANDLED, Handling.HANDLED, Handling.DUPLICATE]
    assert any_bank.notes() == ["000", "001"]


@ways
def test_handlers_that_send_are_batched_where_a_commit_can_be_forbidden(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str
) -> None:
    expected = fill(broker.url, topic)
    failed: list[str] = []

    def handle(message: Message, connection: Any, tx: Any) -> None:
        any_bank.note(connection, message.text)
        tx.send(f"{topic}-out", int(message.text))
        if message.text == "033" and not failed:
            failed.append(message.text)
            raise RuntimeError("once not")

    with running(broker.url, any_bank, topic, group, by, handle) as ts:
        eventually(lambda: ts.stats.handled == COUNT)
        assert ts.stats.batches_undone == (1 if any_bank.engine == "postgresql" else 0)
        eventually(lambda: len(values_in(broker.url, f"{topic}-out")) == COUNT)
    assert sorted(any_bank.notes()) == expected
    assert values_in(broker.url, f"{topic}-out") == list(range(COUNT))


@ways
def test_prepared_messages_and_outcomes_in_a_batch(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str
) -> None:
    ts.create_topic(topic, queues=1)
    for number in range(5):
        pay(ts, any_bank, topic, f"good {number}", mode="consumer-dedup")
        bad = [tallystick.outgoing(topic, "bad")]
        for sent in (prepared(bad, f"{group}-{number}"), outcome(bad, f"{group}-{number}", "rollback")):
            ts.send_many(sent)
    eventually(lambda: len(messages_in(broker.url, topic)) == 20)
    any_bank.run("delete from ledger")

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)

    with running(broker.url, any_bank, topic, group, by, handle) as other:
        eventually(lambda: other.stats.handled == 5)
        eventually(lambda: other.offsets(group, topic).lag == 0)
    assert any_bank.notes() == [f"good {number}" for number in range(5)]
    assert any_bank.rows("select * from tallystick_prepared") == []


@ways
def test_several_consumers_with_batches_share_the_work(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str
) -> None:
    expected = fill(broker.url, topic)

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)

    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(
                running(broker.url, any_bank, topic, group, by, handle, batch=7, concurrency=2, prefetch=0)
            )
        eventually(lambda: len(any_bank.notes()) >= COUNT)
    assert any_bank.notes() == expected


def test_stopping_finishes_the_batch_at_hand(broker: BrokerProcess, any_bank: Bank, topic: str, group: str) -> None:
    expected = fill(broker.url, topic)
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message, connection: Any) -> None:
        any_bank.note(connection, message.text)
        begun.set()
        go_on.wait()

    with Client(broker.url, group=group) as ts:
        ts.subscribe(topic, exactly_once=any_bank.open, batch=BATCH, concurrency=1)(handle)
        ts.start()
        begun.wait()
        threading.Timer(0.2, go_on.set).start()
        ts.stop()
        rest = ts.receive(topic, group, max=COUNT, wait=5)
    assert any_bank.notes() == expected[:BATCH]
    assert sorted(message.text for message in rest) == expected[BATCH:]


@pytest.mark.postgresql
def test_postgresql_refuses_the_commit_of_a_handler_of_several_messages(
    broker: BrokerProcess, postgres: Server, topic: str, group: str
) -> None:
    bank = Bank("postgresql", postgres)
    expected = fill(broker.url, topic, 10)
    refused: list[str] = []

    def handle(message: Message, connection: Any) -> None:
        bank.note(connection, message.text)
        if message.text == "004" and message.attempt == 1:
            try:
                connection.commit()
            except psycopg.Error as error:
                refused.append(str(error))
                raise

    with running(broker.url, bank, topic, group, "inbox", handle) as ts:
        eventually(lambda: ts.stats.handled + ts.stats.duplicates == 10)
    assert bank.notes() == expected
    assert "must not commit" in refused[0]


@pytest.mark.postgresql
@ways
async def test_asynchronous_handlers_in_batches(
    broker: BrokerProcess, postgres: Server, topic: str, group: str, by: Any, commits: list[str]
) -> None:
    bank = Bank("postgresql", postgres)
    expected = await asyncio.to_thread(fill, broker.url, topic)
    failed: list[str] = []
    async with AsyncClient(broker.url) as ts:

        @ts.subscribe(
            topic,
            group=group,
            by=by,
            batch=BATCH,
            concurrency=1,
            exactly_once=lambda: psycopg.AsyncConnection.connect(**bank.parameters()),
        )
        async def handle(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
            await connection.execute("insert into ledger (note) values (%s)", (message.text,))
            if message.text == "011" and not failed:
                failed.append(message.text)
                raise RuntimeError("once not")

        async def done() -> bool:
            return ts.stats.handled == COUNT

        await ts.start()
        await eventually_async(done)
        await ts.stop()
        assert (ts.stats.batches_undone, ts.stats.handler_failures) == (1, 0)
    assert bank.notes() == expected
    assert len(commits) <= COUNT / BATCH + BATCH + 2


def test_batches_that_cannot_work_are_refused(broker: BrokerProcess, bank: Bank) -> None:
    def handle(message: Message) -> None: ...

    with Client(broker.url, group="g") as ts:
        for options, reason in [
            ({"batch": 10}, "exactly_once"),
            ({"batch": 0, "exactly_once": bank.open}, "from 1 to 500"),
            ({"batch": 501, "exactly_once": bank.open}, "from 1 to 500"),
            ({"batch": 100, "concurrency": 100, "exactly_once": bank.open}, "5000"),
        ]:
            with pytest.raises(errors.InvalidRequest, match=reason):
                ts.subscribe("orders", **options)(handle)  # type: ignore[arg-type]
