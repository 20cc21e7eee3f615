"""Digests of what was applied, kept beside the effect where a subscription asks for it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from client_support import Bank, pay

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from tallystick import Client, Message, errors

ways = pytest.mark.parametrize("by", ["inbox", "offset"])


def digests(bank: Bank, group: str) -> dict[str, str]:
    found = bank.rows(f"select message_id, digest from tallystick_digest where consumer_group = '{group}'")
    return {str(identity): str(digest) for identity, digest in found}


def consume(url: str, bank: Bank, topic: str, group: str, expected: int, **options: Any) -> dict[str, bytes]:
    """Apply what is there; the values that the handler saw, by id."""
    seen: dict[str, bytes] = {}
    with Client(url) as ts:

        @ts.subscribe(topic, group=group, exactly_once=bank.open, **options)
        def handle(message: Message, connection: Any) -> None:
            bank.note(connection, message.text)
            seen[message.id] = message.value

        ts.start()
        eventually(lambda: len(bank.notes()) >= expected, "the effects")
    return seen


def hashed(seen: dict[str, bytes]) -> dict[str, str]:
    return {identity: hashlib.sha256(value).hexdigest() for identity, value in seen.items()}


@ways
def test_a_digest_is_kept_of_each_value(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str
) -> None:
    for number in range(3):
        ts.send(topic, f"amount {number}")
    seen = consume(broker.url, any_bank, topic, group, 3, by=by, digest=True)
    assert len(seen) == 3
    assert digests(any_bank, group) == hashed(seen)


@ways
def test_none_is_kept_unless_it_is_asked_for(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, group: str, by: str
) -> None:
    ts.send(topic, "one")
    consume(broker.url, bank, topic, group, 1, by=by)
    assert digests(bank, group) == {}


def test_of_a_prepared_message_it_is_the_value_that_was_applied(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, tmp_path: Any, topic: str, group: str
) -> None:
    shop = Bank("sqlite", tmp_path / "shop.db")
    pay(ts, bank, topic, "prepared", mode="consumer-dedup")
    consume(broker.url, shop, topic, group, 1, digest=True)
    ((identity, digest),) = digests(shop, group).items()
    assert identity.endswith(":0")
    assert digest == hashlib.sha256(b"prepared").hexdigest()


def test_a_digest_goes_with_the_transaction_of_its_effect(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    ts.send(topic, "one")
    failures = ["once"]
    with Client(broker.url) as consumer:

        @consumer.subscribe(topic, group=group, exactly_once=bank.open, digest=True)
        def handle(message: Message, connection: Any) -> None:
            if failures:
                failures.pop()
                raise ValueError("not now")
            assert digests(bank, group) == {}  # what the first attempt kept went with it
            bank.note(connection, "done")

        consumer.start()
        eventually(bank.notes)
    assert len(digests(bank, group)) == 1


def test_a_database_without_the_table_goes_on_without_digests(
    ts: tallystick.Client, broker: BrokerProcess, any_bank: Bank, topic: str, group: str
) -> None:
    """One that was made before there were any; only who asks for digests has to make the table."""
    any_bank.run("drop table tallystick_digest")
    ts.send(topic, "one")
    consume(broker.url, any_bank, topic, group, 1)
    with any_bank.connection() as connection:
        assert ts.clean(connection, older_than=0) == {"barrier": 0, "inbox": 0, "prepared": 0}
    ts.send(topic, "two")
    with Client(broker.url) as consumer:
        subscribe = consumer.subscribe(topic, group=group, exactly_once=any_bank.open, digest=True, max_attempts=1)
        subscribe(lambda message: None)
        consumer.start()
        eventually(lambda: consumer.stats.handler_failures)
    (letter,) = eventually(lambda: ts.fetch(f"dlq.{group}", 0, 0).messages)
    assert "create_tables" in letter.header("dead-reason")


def test_a_connection_is_no_way_to_open_one(ts: tallystick.Client, topic: str, bank: Bank) -> None:
    with bank.connection() as connection, pytest.raises(errors.InvalidRequest, match="a function that opens"):
        ts.subscribe(topic, exactly_once=connection)(lambda message, conn: None)


def test_a_digest_needs_a_database(ts: tallystick.Client, topic: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="give exactly_once"):
        ts.subscribe(topic, digest=True)(lambda message: None)
