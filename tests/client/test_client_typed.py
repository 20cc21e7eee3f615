"""Handlers with a type: they get the value decoded, and what is not of the type is a dead letter at once."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest
from client_support import Bank, messages_in

from brokers import BrokerProcess
from eventually import eventually
from tallystick import AsyncClient, Client, Message, TransactionBase
from tallystick.errors import InvalidRequest


@dataclass
class Order:
    item: str
    amount: int


class Payment(pydantic.BaseModel):
    amount: pydantic.PositiveInt


POISON = [b"no json", b'{"item": "tea"}', b'{"item": "tea", "amount": "2"}', b"", b"\xff\xfe"]


@contextlib.contextmanager
def running(ts: Client) -> Iterator[None]:
    ts.start()
    try:
        yield
    finally:
        ts.stop()


def dead_letters(broker: BrokerProcess, group: str) -> list[Message]:
    return messages_in(broker.url, f"dlq.{group}")


def test_a_handler_gets_the_value_as_its_type(ts: Client, bank: Bank, topic: str) -> None:
    seen: list[Any] = []

    @ts.subscribe(topic, type=Order)
    def alone(message: Message[Order]) -> None:
        seen.append(message.data)

    @ts.subscribe(topic, group="with-connection", type=Order, exactly_once=bank.open)
    def with_connection(message: Message[Order], conn: sqlite3.Connection) -> None:
        bank.note(conn, f"{message.data.amount} of {message.data.item}")

    @ts.subscribe(topic, group="in-order", type=Order, exactly_once=bank.open, by="offset")
    def that_sends(message: Message[Order], conn: sqlite3.Connection, tx: TransactionBase) -> None:
        tx.send(f"{topic}-paid", Payment(amount=message.data.amount))

    @ts.subscribe(f"{topic}-paid", type=Payment)
    def paid(message: Message[Payment]) -> None:
        seen.append(message.data)

    ts.send(topic, Order("tea", 2))
    with running(ts):
        eventually(lambda: bank.notes() == ["2 of tea"] and len(seen) == 2)
    assert Order("tea", 2) in seen
    assert Payment(amount=2) in seen


async def test_a_coroutine_function_too(broker: BrokerProcess, topic: str, group: str) -> None:
    seen: list[Any] = []
    async with AsyncClient(broker.url, group=group) as ts:

        @ts.subscribe(topic, type=list[Order])
        async def handle(message: Message[list[Order]]) -> None:
            seen.extend(message.data)

        await ts.send(topic, [Order("tea", 1), Order("ink", 2)])
        await ts.start()
        await asyncio.to_thread(eventually, lambda: len(seen) == 2)
    assert seen == [Order("tea", 1), Order("ink", 2)]


@pytest.mark.parametrize("batch", [1, pytest.param(10, marks=pytest.mark.full)])
def test_what_is_not_of_the_type_is_a_dead_letter_at_its_first_attempt(
    ts: Client, broker: BrokerProcess, bank: Bank, topic: str, group: str, batch: int
) -> None:
    handled: list[int] = []

    @ts.subscribe(topic, type=Order, exactly_once=bank.open, batch=batch, concurrency=1)
    def handle(message: Message[Order], conn: sqlite3.Connection) -> None:
        handled.append(message.attempt)
        bank.note(conn, message.data.item)

    ts.create_topic(topic, queues=1)
    for value in (Order("first", 1), *POISON, Order("last", 1)):
        ts.send(topic, value)
    with running(ts):
        eventually(lambda: bank.notes() == ["first", "last"])
        eventually(lambda: len(dead_letters(broker, group)) == len(POISON))
    letters = dead_letters(broker, group)
    assert sorted(letter.value for letter in letters) == sorted(POISON)
    assert {letter.header("dead-attempts", "1") for letter in letters} == {"1"}
    assert (handled, ts.stats.undecodable, ts.stats.handler_failures) == ([1, 1], len(POISON), 0)
    reasons = {letter.value: letter.header("dead-reason") for letter in letters}
    assert f"of {topic} is not Order: Expected `int`, got `str` - at `$.amount`" in reasons[POISON[2]]
    assert bank.rows("select count(*) from tallystick_inbox") == [(2,)]


def test_a_message_that_has_its_effect_is_no_dead_letter_when_the_type_has_changed(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    """Sent again from there it would be a new message, and have its effect twice."""
    with Client(broker.url, group=group) as before:

        @before.subscribe(topic, exactly_once=bank.open)
        def handle(message: Message, conn: sqlite3.Connection) -> None:
            bank.note(conn, message.text)

        before.send(topic, "no order")
        with running(before):
            eventually(lambda: bank.notes() == ["no order"])
        before.reset_group(group, topic, to="earliest")  # it comes again
    with Client(broker.url, group=group) as after:

        @after.subscribe(topic, exactly_once=bank.open, type=Order)
        def handle_typed(message: Message[Order], conn: sqlite3.Connection) -> None: ...

        with running(after):
            eventually(lambda: after.stats.duplicates == 1)
        assert (after.stats.undecodable, dead_letters(broker, group)) == (0, [])


def test_a_handler_without_a_database_leaves_poison_to_the_dead_letters_as_well(
    ts: Client, broker: BrokerProcess, topic: str, group: str
) -> None:
    seen: list[int] = []

    @ts.subscribe(topic, type=Payment)
    def handle(message: Message[Payment]) -> None:
        seen.append(message.data.amount)

    for amount in (0, 5):
        ts.send(topic, {"amount": amount})
    with running(ts):
        eventually(lambda: seen == [5] and len(dead_letters(broker, group)) == 1)
    (letter,) = dead_letters(broker, group)
    assert letter.header("dead-reason").endswith("Input should be greater than 0 - at `$.amount`")


def test_what_a_handler_decodes_by_itself_fails_as_everything_in_it_does(
    ts: Client, broker: BrokerProcess, topic: str, group: str
) -> None:
    """It may have a use for such a message at its next attempt; only `type=` says that there is none."""
    attempts: list[int] = []

    @ts.subscribe(topic)
    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            message.decode(Order)

    ts.send(topic, "no order")
    with running(ts):
        eventually(lambda: attempts == [1, 2])
    assert (dead_letters(broker, group), ts.stats.handler_failures, ts.stats.undecodable) == ([], 1, 0)


def test_by_offset_the_queue_stops_and_nothing_is_passed_over(
    ts: Client, broker: BrokerProcess, bank: Bank, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    @ts.subscribe(topic, type=Order, exactly_once=bank.open, by="offset")
    def handle(message: Message[Order], conn: sqlite3.Connection) -> None:
        bank.note(conn, message.data.item)

    ts.create_topic(topic, queues=1)
    for value in (Order("first", 1), b"no json", Order("last", 1)):
        ts.send(topic, value)
    with running(ts):
        eventually(lambda: ts.stats.handler_failures >= 2)  # tried again, and stopped again
    assert bank.notes() == ["first"]
    assert bank.rows("select next_offset from tallystick_offset") == [(1,)]
    assert dead_letters(broker, group) == []
    assert "is not Order: JSON is malformed" in caplog.text


@pytest.mark.full
def test_a_batch_that_is_undone_decodes_anew(ts: Client, bank: Bank, topic: str) -> None:
    """A handler may change what it is given; a second call must not see that."""
    failed: list[str] = []

    @ts.subscribe(topic, type=list[str], exactly_once=bank.open, batch=10, concurrency=1)
    def handle(message: Message[list[str]], conn: sqlite3.Connection) -> None:
        bank.note(conn, message.data.pop())
        if message.offset == 2 and not failed:
            failed.append("once")
            raise ValueError("the third fails, once")

    ts.create_topic(topic, queues=1)
    for number in range(3):
        ts.send(topic, ["wrong", f"right {number}"])
    with running(ts):
        eventually(lambda: len(bank.notes()) == 3)
    assert bank.notes() == ["right 0", "right 1", "right 2"]


@pytest.mark.parametrize("by", ["inbox", pytest.param("offset", marks=pytest.mark.full)])
def test_messages_in_consumer_dedup_mode_are_decoded_when_their_outcome_comes(
    ts: Client, broker: BrokerProcess, bank: Bank, topic: str, group: str, by: Any
) -> None:
    @ts.subscribe(topic, type=Order, exactly_once=bank.open, by=by)
    def handle(message: Message[Order], conn: sqlite3.Connection) -> None:
        bank.note(conn, message.data.item)

    for value in (Order("jam", 1), *([b"no json"] if by == "inbox" else [])):
        with bank.connection() as conn, ts.transaction(conn, mode="consumer-dedup") as tx:
            tx.send(topic, value)
    with running(ts):
        eventually(lambda: bank.notes() == ["jam"])
        if by == "inbox":
            eventually(lambda: len(dead_letters(broker, group)) == 1)
            (letter,) = dead_letters(broker, group)
            assert "is not Order: JSON is malformed" in letter.header("dead-reason")
            # The letter is the outcome; the value itself is kept where it was.
            assert len(bank.rows("select * from tallystick_prepared")) == 1


def test_a_type_that_nothing_can_be_decoded_to_is_refused_when_it_is_given(ts: Client, topic: str) -> None:
    with pytest.raises(InvalidRequest, match=r"type: .*cannot be decoded from JSON: nothing is known of Client"):
        ts.subscribe(topic, type=list[Client])(lambda message: None)
