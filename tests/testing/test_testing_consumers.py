"""Handlers that are called until nothing is left."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from testing_shop import Shop

import tallystick
from tallystick.testing import STEPS, MemoryBroker, Step, crash_at

DURABLE = ("after commit", "answer lost")
MARKED = [
    pytest.param(step, marks=[] if step in ("before commit", "after commit") else [pytest.mark.full]) for step in STEPS
]


@pytest.fixture(params=["inbox", "offset"])
def ways(request: pytest.FixtureRequest, shop: Shop) -> dict[str, Any]:
    """How a subscription is exactly once."""
    return {"exactly_once": shop.open, "by": request.param}


def insert(message: tallystick.Message, conn: sqlite3.Connection) -> None:
    conn.execute("insert into orders values (?)", (message.text,))


def test_every_visible_message_is_handled_once(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, ways: dict[str, Any]
) -> None:
    tallystick_client.subscribe("orders", **ways)(insert)
    assert tallystick_broker.drain(tallystick_client) == 0  # there is no such topic yet
    for number in range(7):
        tallystick_client.send("orders", str(number), tag="new")
    assert tallystick_broker.drain(tallystick_client) == 7
    assert tallystick_broker.drain(tallystick_client) == 0
    assert shop.items() == [str(number) for number in range(7)]


def test_batches_and_tags_are_as_the_subscription_says(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, ways: dict[str, Any]
) -> None:
    tallystick_client.subscribe("orders", tags=["new"], batch=3, **ways)(insert)
    for number in range(10):
        tallystick_client.send("orders", number, tag="new" if number % 2 else "old")
    assert tallystick_broker.drain(tallystick_client) == 5
    assert shop.items() == ["1", "3", "5", "7", "9"]
    tallystick_client.send("orders", 11, tag="new")
    assert tallystick_broker.drain(tallystick_client) == 1


def test_a_failure_in_a_batch_leaves_the_effects_before_it(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, ways: dict[str, Any]
) -> None:
    broken = ["2"]

    @tallystick_client.subscribe("orders", batch=5, **ways)
    def store(message: tallystick.Message, conn: sqlite3.Connection) -> None:
        insert(message, conn)
        if message.text in broken:
            raise ValueError("not this one")

    tallystick_client.create_topic("orders", queues=1)
    for number in range(5):
        tallystick_client.send("orders", number)
    with pytest.raises(ValueError, match="not this one"):
        tallystick_broker.drain(tallystick_client)
    assert shop.items() == ["0", "1"]
    broken.clear()
    assert tallystick_broker.drain(tallystick_client) == 3
    assert shop.items() == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("batch", [1, 3])
def test_what_does_not_decode_is_a_dead_letter(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, batch: int
) -> None:
    @tallystick_client.subscribe("orders", group="store", type=int, exactly_once=shop.open, batch=batch)
    def store(message: tallystick.Message[int], conn: sqlite3.Connection) -> None:
        insert(message, conn)

    for value in (1, "two", 3, 4):
        tallystick_client.send("orders", value)
    assert tallystick_broker.drain(tallystick_client) == 3
    assert shop.items() == ["1", "3", "4"]
    assert [letter.text for letter in tallystick_broker.messages("dlq.store")] == ["two"]


def test_what_handlers_send_is_handled_too(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop
) -> None:
    @tallystick_client.subscribe("parcels", exactly_once=shop.open)
    def ship(message: tallystick.Message, conn: sqlite3.Connection) -> None:
        insert(message, conn)

    @tallystick_client.subscribe("orders", exactly_once=shop.open)
    def pack(message: tallystick.Message, conn: sqlite3.Connection, tx: tallystick.Transaction) -> None:
        tx.send("parcels", f"packed {message.text}")

    tallystick_client.send("orders", "hat")
    assert tallystick_broker.drain(tallystick_client) == 2
    assert shop.items() == ["packed hat"]
    tallystick_broker.assert_sent("parcels", "packed hat", times=1)


def test_an_error_of_a_handler_is_raised_and_its_message_is_there_again(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, ways: dict[str, Any]
) -> None:
    broken = [True]

    @tallystick_client.subscribe("orders", **ways)
    def fails_once(message: tallystick.Message, conn: sqlite3.Connection) -> None:
        insert(message, conn)
        if broken and message.text == "coat":
            broken.clear()
            raise KeyError("no such coat")

    for item in ("hat", "coat", "scarf"):
        tallystick_client.send("orders", item)
    with pytest.raises(KeyError, match="no such coat"):
        tallystick_broker.drain(tallystick_client)
    assert shop.items() == ["hat"]
    assert tallystick_broker.drain(tallystick_client) == 2
    assert sorted(shop.items()) == ["coat", "hat", "scarf"]


def test_a_second_delivery_has_no_second_effect(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, ways: dict[str, Any]
) -> None:
    tallystick_client.subscribe("orders", **ways)(insert)
    for item in ("hat", "coat"):
        tallystick_client.send("orders", item)
    assert tallystick_broker.drain(tallystick_client, twice=True) == 2
    assert shop.items() == ["hat", "coat"]


def test_a_second_delivery_finds_a_handler_that_is_not_idempotent(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
) -> None:
    seen: list[tuple[str, int]] = []
    tallystick_client.subscribe("orders")(lambda message: seen.append((message.text, message.attempt)))
    tallystick_client.send("orders", "hat")
    assert tallystick_broker.drain(tallystick_client, twice=True) == 2
    assert seen == [("hat", 1), ("hat", 2)]


@pytest.mark.parametrize("step", MARKED)
def test_a_crash_in_a_handler_leaves_one_effect(
    tallystick_broker: MemoryBroker,
    tallystick_client: tallystick.Client,
    shop: Shop,
    ways: dict[str, Any],
    step: Step,
) -> None:
    calls: list[str] = []

    @tallystick_client.subscribe("orders", **ways)
    def handler(message: tallystick.Message, conn: sqlite3.Connection, tx: tallystick.Transaction) -> None:
        calls.append(message.text)
        insert(message, conn)
        tx.send("parcels", message.text)

    tallystick_client.send("orders", "hat")
    with crash_at(step):
        tallystick_broker.drain(tallystick_client)
    assert shop.items() == (["hat"] if step in DURABLE else [])
    tallystick_broker.check_back()
    tallystick_broker.drain(tallystick_client)
    assert shop.items() == ["hat"]
    tallystick_broker.assert_sent("parcels", "hat", times=1)
    assert set(calls) == {"hat"}


def test_a_crash_after_the_effect_of_a_plain_handler_repeats_it(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
) -> None:
    mails: list[str] = []
    tallystick_client.subscribe("orders")(lambda message: mails.append(message.text))
    tallystick_client.send("orders", "hat")
    with crash_at("after commit"):
        tallystick_broker.drain(tallystick_client)
    assert mails == ["hat"]
    tallystick_broker.drain(tallystick_client)
    assert mails == ["hat", "hat"]


@pytest.mark.parametrize("mode", ["check-back", "outbox", "consumer-dedup"])
def test_messages_of_each_mode_are_handled(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, mode: Any, ways: dict[str, Any]
) -> None:
    tallystick_client.subscribe("orders", **ways)(insert)
    with tallystick_client.transaction(shop.conn, mode=mode) as tx:
        tx.send("orders", "hat")
    assert [message.text for message in tallystick_broker.messages("orders")] == ["hat"]
    assert tallystick_broker.drain(tallystick_client) == 1
    assert shop.items() == ["hat"]


async def test_async_handlers(
    tallystick_broker: MemoryBroker, tallystick_async_client: tallystick.AsyncClient, shop: Shop, ways: dict[str, Any]
) -> None:
    async with tallystick_async_client as ts:

        @ts.subscribe("orders", **ways)
        async def handler(message: tallystick.Message, conn: sqlite3.Connection) -> None:
            insert(message, conn)

        for item in ("hat", "coat"):
            await ts.send("orders", item)
        with crash_at("after commit"):
            await tallystick_broker.adrain(ts)
        assert shop.items() == ["hat"]
        await tallystick_broker.adrain(ts, twice=True)
        assert sorted(shop.items()) == ["coat", "hat"]


def test_a_running_consumer_works_as_well(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop
) -> None:
    @tallystick_client.subscribe("orders", exactly_once=shop.open)
    def forward(message: tallystick.Message, conn: sqlite3.Connection, tx: tallystick.Transaction) -> None:
        tx.send("parcels", message.text)

    tallystick_client.start()
    tallystick_client.send("orders", "hat")
    tallystick_broker.assert_sent("parcels", "hat", within=60)


def test_a_message_that_fails_too_often_is_a_dead_letter(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop
) -> None:
    @tallystick_client.subscribe("orders", group="store", exactly_once=shop.open, max_attempts=2)
    def store(message: tallystick.Message, conn: sqlite3.Connection) -> None:
        raise KeyError(message.text)

    tallystick_client.send("orders", "never")
    for _ in range(2):
        with pytest.raises(KeyError):
            tallystick_broker.drain(tallystick_client)
    assert tallystick_broker.drain(tallystick_client) == 0
    assert [letter.text for letter in tallystick_broker.messages("dlq.store")] == ["never"]
