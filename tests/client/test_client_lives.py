"""Consumers over the end of a topic, and of a whole store: no new message is taken for one that was seen before."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from client_support import Bank

import tallystick
from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import RawClient
from tallystick import Client, Message

ways = pytest.mark.parametrize("by", ["inbox", "offset"])


@contextmanager
def consuming(url: str, bank: Bank, topic: str, group: str, by: str, **options: Any) -> Iterator[Callable[[int], None]]:
    """A consumer that notes every message; gives a wait for so many notes."""

    def handle(message: Message, connection: Any) -> None:
        bank.note(connection, message.text)

    with Client(url) as ts:
        ts.subscribe(topic, group=group, exactly_once=bank.open, by=by, **options)(handle)
        ts.start()
        try:
            yield lambda count: eventually(lambda: len(bank.notes()) >= count, f"{count} notes, not {bank.notes()}")
        finally:
            ts.stop()


def send(url: str, topic: str, *values: str) -> None:
    """Of level 1, where a message's place is its id; all in one queue."""
    with Client(url) as ts:
        ts.send_many([tallystick.outgoing(topic, value, key="k") for value in values], level=1)


def make(url: str, topic: str) -> None:
    with Client(url) as ts:
        ts.create_topic(topic, queues=1)


def delete(url: str, topic: str) -> None:
    with RawClient(url) as client:
        assert client.request("DELETE", f"/v1/topics/{topic}").status == 204


def has_begun(broker: BrokerProcess, bank: Bank, group: str, by: str) -> bool:
    """Whether a group that begins with the latest message has fixed where that is."""
    if by == "inbox":
        return broker.get(f"/v1/groups/{group}") == 200
    return bool(bank.rows("select * from tallystick_offset"))


@ways
@pytest.mark.parametrize("made", ["by request", "by its first message"])
def test_a_topic_made_again_while_nobody_consumed(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, by: str, made: str
) -> None:
    make(broker.url, topic) if made == "by request" else send(broker.url, topic, "0")
    first = [] if made == "by request" else ["0"]
    send(broker.url, topic, "1", "2", "3")
    with consuming(broker.url, any_bank, topic, group, by) as wait:
        wait(3 + len(first))
    delete(broker.url, topic)
    if made == "by request":
        make(broker.url, topic)
    send(broker.url, topic, "4", "5", "6", "7", "8")
    with consuming(broker.url, any_bank, topic, group, by) as wait:
        wait(8 + len(first))
    assert any_bank.notes() == [*first, *"12345678"]


@ways
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_topic_made_again_under_a_running_consumer(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: str, start: str
) -> None:
    send(broker.url, topic, "1")
    with consuming(broker.url, bank, topic, group, by):
        eventually(bank.notes)
    with consuming(broker.url, bank, topic, group, by, start=start) as wait:
        send(broker.url, topic, "2")
        wait(2)
        delete(broker.url, topic)
        send(broker.url, topic, "3", "4", "5")
        wait(5)
        delete(broker.url, topic)
        send(broker.url, topic, "6")
        wait(6)
    assert bank.notes() == list("123456")


@ways
def test_a_topic_made_again_with_more_queues_is_read_from_its_first_message(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: str
) -> None:
    """A group that was to begin with the latest message has begun: queues that came since are its own as a whole."""
    make(broker.url, topic)
    send(broker.url, topic, "before")
    with consuming(broker.url, bank, topic, group, by, start="latest") as wait:
        eventually(lambda: has_begun(broker, bank, group, by))
        send(broker.url, topic, "0")
        wait(1)
    delete(broker.url, topic)
    with Client(broker.url) as ts:
        ts.create_topic(topic, queues=4)
        ts.send_many([tallystick.outgoing(topic, value, key=value) for value in "123456789"], level=1)
    with consuming(broker.url, bank, topic, group, by, start="latest") as wait:
        wait(10)
    assert bank.notes() == list("0123456789")


@pytest.mark.parametrize("on_trimmed", ["stop", "skip"])
def test_messages_that_went_with_their_topic_are_told(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, on_trimmed: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(broker.url, topic)
    send(broker.url, topic, "1", "2")
    with consuming(broker.url, bank, topic, group, "offset") as wait:
        wait(2)
    send(broker.url, topic, "never read")
    delete(broker.url, topic)
    make(broker.url, topic)
    send(broker.url, topic, "3", "4", "5")
    with (
        caplog.at_level(logging.WARNING, "tallystick.client"),
        consuming(broker.url, bank, topic, group, "offset", on_trimmed=on_trimmed) as wait,
    ):
        if on_trimmed == "skip":
            wait(5)
            assert "offsets 2 to 2 are lost, skipping them" in caplog.text
        else:
            eventually(lambda: "deleted and made again, offsets before 3 were those" in caplog.text)
            assert "subscribe with on_trimmed='skip'" in caplog.text
    assert bank.notes() == (list("12345") if on_trimmed == "skip" else list("12"))


@ways
def test_another_store_behind_the_same_address_is_noticed(
    tmp_path: Path, bank: Bank, topic: str, group: str, by: str
) -> None:
    """Its offsets begin anew, and ids and places carry its name."""
    # Its consumer may ask for the topic before it is made.
    with running_broker(tmp_path, redelivery_first="100ms", default_queues=1) as broker:
        make(broker.url, topic)
        send(broker.url, topic, "1", "2", "3")
        with consuming(broker.url, bank, topic, group, by) as wait:
            wait(3)
            broker.kill()
            shutil.rmtree(broker.data_dir)
            broker.start()
            make(broker.url, topic)
            send(broker.url, topic, "4", "5", "6", "7", "8")
            wait(8)
        assert bank.notes() == list("12345678")


def test_another_store_that_ends_earlier_is_no_loss_of_messages(
    tmp_path: Path, bank: Bank, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running_broker(tmp_path, default_queues=1) as broker:
        make(broker.url, topic)
        send(broker.url, topic, "1", "2", "3")
        with (
            caplog.at_level(logging.WARNING, "tallystick.client"),
            consuming(broker.url, bank, topic, group, "offset") as wait,
        ):
            wait(3)
            broker.kill()
            shutil.rmtree(broker.data_dir)
            broker.start()
            make(broker.url, topic)
            send(broker.url, topic, "4")
            wait(4)
        assert "no longer" in caplog.text  # said by whoever of the client notices it first
        assert "Messages were removed" not in caplog.text
