"""A broker that turns us away in the middle of work: nothing is lost, nothing is guessed, and the log is told once."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from client_support import Bank, values_in

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from keeper import Keeper, doorkeeper
from tallystick.errors import Forbidden, Unauthenticated

TOKEN = f"tally_abcdefghijkl_{uuid.uuid4().hex}"


@pytest.fixture
def keeper(broker: BrokerProcess) -> Iterator[Keeper]:
    with doorkeeper(broker.url, TOKEN) as made:
        yield made


def told(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [message for message in found if words in message]


@pytest.mark.parametrize("status", [401, 403])
def test_a_commit_that_is_refused_is_found_by_the_check_back_once_we_are_let_in_again(
    keeper: Keeper, broker: BrokerProcess, topic: str, bank: Bank, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that is revoked between prepare and commit."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    with tallystick.Client(keeper.url, group=group, token=TOKEN, database=bank.open, timeout=2.0) as client:
        client.create_topic(topic)
        with bank.connection() as connection, client.transaction(connection, prepare="early") as tx:
            tx.send(topic, {"paid": 1})
            tx.prepare()
            bank.note(connection, "paid")
            keeper.judge = lambda path, body: status
        eventually(lambda: client.stats.commits_left_to_check == 1)
        assert values_in(broker.url, topic) == []  # in doubt, and nobody has guessed
        with pytest.raises((Unauthenticated, Forbidden)):
            pay(client, bank, topic)
        keeper.judge = lambda path, body: 0
        eventually(lambda: len(values_in(broker.url, topic)) == 1)
    assert bank.notes() == ["paid"]
    (commits,) = told(caplog, "the commit of what is committed locally")
    assert "left to the check-back" in commits
    assert len(told(caplog, "for checks is refused")) <= 1
    assert TOKEN not in caplog.text


def pay(client: tallystick.Client, bank: Bank, topic: str) -> None:
    with bank.connection() as connection, client.transaction(connection) as tx:
        bank.note(connection, "paid")
        tx.send(topic, {"paid": 1})


def test_a_commit_that_is_refused_is_said_again_while_its_time_lasts(
    keeper: Keeper, broker: BrokerProcess, topic: str, bank: Bank
) -> None:
    refused: list[bytes] = []

    def first_only(path: str, body: bytes) -> int:
        if b"\xa2op\xa6commit" not in body or refused:
            return 0
        refused.append(body)
        return 401

    # Only this word of the commit can bring the message: the broker does not ask for a minute.
    with tallystick.Client(keeper.url, group="g-again", token=TOKEN, check_after=60.0) as client:
        client.create_topic(topic)
        keeper.judge = first_only
        pay(client, bank, topic)
        eventually(lambda: len(values_in(broker.url, topic)) == 1)
        assert client.stats.commits_left_to_check == 0
    assert len(refused) == 1


def test_outbox_rows_that_are_refused_stay_until_they_are_taken(
    keeper: Keeper, broker: BrokerProcess, topic: str, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    with tallystick.Client(keeper.url, group="g-rows", token=TOKEN, timeout=1.0) as client:
        client.create_topic(topic)
        keeper.judge = lambda path, body: 403 if path == "/v1/batch" else 0
        with bank.connection() as connection, client.transaction(connection, mode="outbox") as tx:
            tx.send(topic, {"row": 1})
        eventually(lambda: keeper.refused.count("/v1/batch") >= 2)
        keeper.judge = lambda path, body: 0
        client.redrive(bank.open, every=0.1)
        eventually(lambda: len(values_in(broker.url, topic)) == 1)
        eventually(lambda: bank.rows("select count(*) from tallystick_outbox")[0][0] == 0)


@pytest.mark.parametrize("by", ["lease", "offset"])
def test_consumers_wait_to_be_let_in_and_go_on(
    keeper: Keeper, topic: str, bank: Bank, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []
    began = time.monotonic()
    with tallystick.Client(keeper.url, group="g-consumers", token=TOKEN) as client:
        client.create_topic(topic)
        client.send(topic, b"one")
        keeper.judge = lambda path, body: 401 if "/groups/" in path or "/queues/" in path else 0
        if by == "offset":
            client.subscribe(topic, group="by-offset", exactly_once=bank.open, by="offset")(
                lambda message, connection: got.append(message.value)
            )
        else:
            client.subscribe(topic, group="by-lease")(lambda message: got.append(message.value))
        client.start()
        eventually(lambda: len(keeper.refused) >= 3)
        # Three tries of each of the queues at most, with pauses of a second, and then two: no hot loop.
        assert len(keeper.refused) <= 4 * (time.monotonic() - began + 4)
        keeper.judge = lambda path, body: 0
        eventually(lambda: got == [b"one"])
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("by", ["inbox", "offset"])
def test_one_refusal_at_several_places_is_told_once(
    keeper: Keeper, broker: BrokerProcess, topic: str, bank: Bank, by: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    got: list[bytes] = []
    with (
        doorkeeper(broker.url, TOKEN) as second,
        tallystick.Client([keeper.url, second.url], group=f"g-places-{by}", token=TOKEN) as client,
    ):
        both = keeper, second
        client.create_topic(topic, queues=2)
        for one in both:
            one.judge = lambda path, body: 401 if "/groups/" in path or "/queues/" in path else 0
        client.subscribe(topic, exactly_once=bank.open, by=by)(lambda message, connection: got.append(message.value))
        client.start()
        eventually(lambda: all(len(one.refused) >= 2 for one in both))
        eventually(lambda: told(caplog, "is refused"))
        assert len(told(caplog, "is refused")) == 1
        for one in both:
            one.judge = lambda path, body: 0
        client.send(topic, b"one")
        eventually(lambda: b"one" in got)
        eventually(lambda: said(caplog, "is not refused any more") == 1)
    assert len(told(caplog, "is refused")) == 1


def test_a_client_that_nobody_knows_waits_to_be_let_in(
    keeper: Keeper, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []
    keeper.judge = lambda path, body: 401
    with tallystick.Client(keeper.url, token=TOKEN) as client:
        client.subscribe(topic, group="readers")(lambda message: got.append(message.value))
        client.start()
        eventually(lambda: len(keeper.refused) >= 3)
        assert len(told(caplog, "this client is refused")) == 1
        keeper.judge = lambda path, body: 0
        client.create_topic(topic)
        client.send(topic, b"one")
        eventually(lambda: got == [b"one"])


def test_the_outbox_slows_down_and_tells_it_once_while_some_rows_are_refused_and_others_taken(
    keeper: Keeper, broker: BrokerProcess, topic: str, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    closed = f"closed-{topic}"
    refused_at: list[float] = []

    def no_closed_topic(path: str, body: bytes) -> int:
        if path != "/v1/batch" or closed.encode() not in body:
            return 0
        refused_at.append(time.monotonic())
        return 403

    with tallystick.Client(keeper.url, group="g-some-rows", token=TOKEN, timeout=1.0) as client:
        client.create_topic(topic)
        client.create_topic(closed)
        keeper.judge = lambda path, body: 403 if path == "/v1/batch" else 0
        for number in range(3):
            send_a_row(client, bank, closed, number)
            send_a_row(client, bank, topic, number)
        time.sleep(3.0)  # the blocks' own tries are over: they last for the client's timeout
        keeper.judge = no_closed_topic
        client.redrive(bank.open, every=0.02)
        eventually(lambda: len(refused_at) >= 12)  # three rows a pass
        passes, seconds = len(refused_at) / 3, refused_at[-1] - refused_at[0]
        assert passes <= 2 + seconds  # with pauses of a second, then two, then four
        assert values_in(broker.url, topic) == [0, 1, 2]
        assert len(told(caplog, "what the outbox sends")) == 1
        assert told(caplog, "re-driving the outbox") == []
        keeper.judge = lambda path, body: 0
        eventually(lambda: values_in(broker.url, closed) == [0, 1, 2])


def send_a_row(client: tallystick.Client, bank: Bank, topic: str, number: int) -> None:
    with bank.connection() as connection, client.transaction(connection, mode="outbox") as tx:
        tx.send(topic, number)


def test_a_reader_that_is_let_in_again_says_so_and_tells_of_the_next_refusal(
    keeper: Keeper, topic: str, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []
    caplog.set_level(logging.INFO)
    with tallystick.Client(keeper.url, group="g-twice", token=TOKEN) as client:
        client.create_topic(topic, queues=1)
        client.subscribe(topic, group="by-offset", exactly_once=bank.open, by="offset")(
            lambda message, connection: got.append(message.value)
        )
        client.start()
        for number in (b"one", b"two"):
            client.send(topic, number)
            eventually(lambda number=number: got[-1:] == [number])  # type: ignore[misc]
            keeper.judge = lambda path, body: 401 if "/queues/" in path else 0
            client.send(topic, b"wakes who waits for messages")
            seen = len(keeper.refused)
            eventually(lambda seen=seen: len(keeper.refused) > seen + 1)  # type: ignore[misc]
            keeper.judge = lambda path, body: 0
            client.send(topic, b"x")
            eventually(lambda: got[-1:] == [b"x"])
            eventually(lambda number=number: said(caplog, "not refused any more") == (1 if number == b"one" else 2))  # type: ignore[misc]
    assert len(told(caplog, "is refused, and tried again now and then")) == 2


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


def test_what_a_handler_raises_is_not_called_a_refusal_of_the_brokers(
    keeper: Keeper, topic: str, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []

    def handler(message: tallystick.Message, connection: object) -> None:
        if not caplog.records:
            raise Forbidden("another service forbids it")
        got.append(message.value)

    with tallystick.Client(keeper.url, group="g-handler", token=TOKEN) as client:
        client.create_topic(topic)
        client.subscribe(topic, group="by-offset", exactly_once=bank.open, by="offset")(handler)
        client.start()
        client.send(topic, b"one")
        eventually(lambda: got == [b"one"])
    assert told(caplog, "is refused") == []
    (record,) = [record for record in caplog.records if "another service forbids it" in record.getMessage()]
    assert record.exc_info  # with the place where it was raised


def test_rollbacks_that_are_heard_again_end_their_refusal(
    keeper: Keeper, topic: str, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with tallystick.Client(keeper.url, group="g-undone", token=TOKEN, timeout=1.0) as client:
        client.create_topic(topic)
        for times in (1, 2):
            keeper.judge = lambda path, body: 401 if b"\xa2op\xa8rollback" in body else 0
            roll_back(client, bank, topic)
            eventually(
                lambda times=times: (
                    said(caplog, "rollback of transactions (left to the check-back) is refused") == times
                )
            )  # type: ignore[misc]
            keeper.judge = lambda path, body: 0
            roll_back(client, bank, topic)
            eventually(
                lambda times=times: said(caplog, "rollback of transactions (left to the check-back) is not") == times
            )  # type: ignore[misc]


def test_a_process_that_only_consumes_is_not_warned_that_it_may_not_poll_for_checks(
    keeper: Keeper, topic: str, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    got: list[bytes] = []
    keeper.judge = lambda path, body: 403 if path == "/v1/checks/poll" else 0
    with tallystick.Client(keeper.url, group="g-only-consumes", token=TOKEN, database=bank.open) as client:
        client.create_topic(topic)
        client.subscribe(topic, exactly_once=bank.open)(lambda message, connection: got.append(message.value))
        client.start()
        client.send(topic, b"one")
        eventually(lambda: got == [b"one"] and keeper.refused.count("/v1/checks/poll") >= 2)
        assert told(caplog, "polling for checks") == []
        assert said(caplog, "polling for checks is not allowed, nor needed") == 1
        pay(client, bank, topic)
        eventually(lambda: told(caplog, "polling for checks is refused"))


def roll_back(client: tallystick.Client, bank: Bank, topic: str) -> None:
    with (
        contextlib.suppress(ZeroDivisionError),
        bank.connection() as connection,
        client.transaction(connection, prepare="early") as tx,
    ):
        tx.send(topic, {"undone": 1})
        tx.prepare()
        raise ZeroDivisionError
