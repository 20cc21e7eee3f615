"""Too many messages are refused while they are collected, or at the latest before anything is encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_support import Bank, messages_in

import tallystick
from brokers import BrokerProcess, running_broker
from eventually import eventually_equal
from tallystick import errors

raises = pytest.raises
"""Around a block of several lines, which is what raises."""

MOST = 1_000
URL = "http://127.0.0.1:9/x"
Add = Callable[[tallystick.TransactionBase], None]
KINDS: dict[str, Add] = {"messages": lambda tx: tx.send("t", "x"), "calls": lambda tx: tx.call(URL, "x")}


@pytest.fixture(scope="module")
def generous() -> Iterator[BrokerProcess]:
    with running_broker(max_transaction_messages=3_000) as process:
        yield process


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["check-back", "outbox"])
def test_one_too_many_is_refused_where_it_is_added(broker: BrokerProcess, bank: Bank, kind: str, mode: Any) -> None:
    added = 0
    with tallystick.Client(broker.url, group="counts") as client, bank.connection() as connection:
        client.info()  # as any earlier transaction does
        with raises(errors.TooLarge) as caught, client.transaction(connection, mode=mode) as tx:
            bank.note(connection, "undone")
            for _ in range(3 * MOST):
                KINDS[kind](tx)
                added += 1
    assert added == MOST
    assert caught.value.field == kind
    assert str(caught.value).startswith(f"{kind}: a transaction holds at most 1000 {kind} (got 1001 or more).")
    assert bank.notes() == []


@pytest.mark.parametrize("early", [False, True])
def test_the_first_block_of_a_process_is_refused_by_their_number_too(
    broker: BrokerProcess, bank: Bank, early: bool
) -> None:
    """Their bytes are more than a request may have, which must not be the answer."""
    prepare: Any = "early" if early else "late"
    with (
        tallystick.Client(broker.url, group="counts") as client,
        bank.connection() as connection,
        raises(errors.TooLarge, match="a transaction holds at most 1000 messages"),
        client.transaction(connection, prepare=prepare) as tx,
    ):
        for _ in range(20 * MOST):
            tx.send("t", b"x" * 1_000)
        if early:
            tx.prepare()
    assert bank.notes() == []


async def test_so_it_is_on_an_event_loop(broker: BrokerProcess, bank: Bank) -> None:
    added = 0
    async with tallystick.AsyncClient(broker.url, group="counts") as client:
        with bank.connection() as connection, raises(errors.TooLarge, match="at most 1000 messages"):
            async with client.transaction(connection) as tx:
                for _ in range(5 * MOST):
                    tx.send("t", "x")
        await client.info()
        with bank.connection() as connection, raises(errors.TooLarge, match="at most 1000 messages"):
            async with client.transaction(connection) as tx:
                for _ in range(5 * MOST):
                    tx.send("t", "x")
                    added += 1
    assert added == MOST


MANY_MESSAGES = [tallystick.outgoing("t", b"x" * 1_000)] * 20 * MOST
MANY_CALLS = [tallystick.outgoing_call(URL, "x")] * 20 * MOST


@pytest.mark.parametrize(
    ("send", "kind"),
    [
        (lambda client: client.send_many(MANY_MESSAGES), "messages"),
        (lambda client: client.send_many(MANY_MESSAGES, level=1), "messages"),
        (lambda client: client.send_calls(MANY_CALLS), "calls"),
        (lambda client: client.prepare(client.new_gid(), MANY_MESSAGES), "messages"),
    ],
)
def test_without_a_block_they_are_counted_before_they_are_encoded(
    broker: BrokerProcess, send: Callable[[tallystick.Client], object], kind: str
) -> None:
    with tallystick.Client(broker.url, group="counts") as client, raises(errors.TooLarge, match=f"at most 1000 {kind}"):
        send(client)


def test_what_the_operator_allows_is_taken_by_the_first_block(generous: BrokerProcess, bank: Bank, topic: str) -> None:
    with tallystick.Client(generous.url, group="counts") as client:
        with bank.connection() as connection, client.transaction(connection) as tx:
            for number in range(2_500):
                tx.send(topic, str(number))
        eventually_equal(lambda: len(messages_in(generous.url, topic)), 2_500)
    with tallystick.Client(generous.url) as client:
        assert len(client.send_many([tallystick.outgoing(topic, "x")] * 2_500).positions) == 2_500
