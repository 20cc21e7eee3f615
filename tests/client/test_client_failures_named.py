"""What the log says of a block that failed begins with its own error, not with what is left to the check-back."""

from __future__ import annotations

import logging

import pytest
from client_support import Bank

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from keeper import doorkeeper
from tallystick import errors

raises = pytest.raises
"""Around a block of several lines, which is what raises."""


def warned(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [message for message in found if words in message]


def test_an_exception_of_the_block_comes_before_its_rollback(
    broker: BrokerProcess, topic: str, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    with doorkeeper(broker.url) as keeper, tallystick.Client(keeper.url, group="named", timeout=1.0) as client:
        client.create_topic(topic)
        keeper.judge = lambda path, body: 500 if b"\xa2op\xa8rollback" in body else 0
        with (
            raises(ZeroDivisionError),
            bank.connection() as connection,
            client.transaction(connection, prepare="early") as tx,
        ):
            tx.send(topic, "x")
            tx.prepare()
            gid = tx.gid
            raise ZeroDivisionError("no such share")
        (said,) = eventually(lambda: warned(caplog, "its rollback is left to the check-back"))
    assert said.startswith(f"transaction {gid} failed with ZeroDivisionError: no such share; its rollback is left")


def test_a_prepare_in_doubt_comes_before_the_rollback(
    broker: BrokerProcess, topic: str, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    with doorkeeper(broker.url) as keeper, tallystick.Client(keeper.url, group="named", timeout=1.0) as client:
        client.create_topic(topic)
        keeper.bare = True  # 503 without a word on what was done, as of a proxy
        keeper.judge = lambda path, body: 503 if b"prepare" in body or b"rollback" in body else 0
        with (
            bank.connection() as connection,
            raises(errors.BrokerUnavailable),
            client.transaction(connection) as tx,
        ):
            tx.send(topic, "x")
        (said,) = eventually(lambda: warned(caplog, "its rollback is left to the check-back"))
        assert said.startswith("transaction ")
        assert " failed with BrokerUnavailable: " in said.partition("; its rollback")[0]
        client.close(timeout=0.1)


def test_a_local_rollback_that_fails_comes_after_the_error_of_the_block(
    broker: BrokerProcess, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        tallystick.Client(broker.url, group="named") as client,
        bank.connection() as connection,
        raises(ZeroDivisionError),
        client.transaction(connection),
    ):
        connection.close()
        raise ZeroDivisionError("no such share")
    for said in warned(caplog, "its local rollback failed"):
        assert said.startswith(
            "a transaction failed with ZeroDivisionError: no such share; its local rollback failed: "
        )
