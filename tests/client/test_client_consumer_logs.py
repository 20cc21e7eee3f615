"""What the log is told of messages that could not be handled: what one needs, and no walls of frames."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg
import pytest
from client_support import Bank

from brokers import BrokerProcess
from eventually import eventually
from servers import Server
from tallystick import AsyncClient, Client, Message
from tallystick.client.base.tasks import Tasks, repeat
from tallystick.core.errors import Moved
from tallystick.local import free_port

ways = pytest.mark.parametrize("by", ["inbox", "offset"])


def shown(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """What a handler of the log writes of warnings with these words, frames and all."""
    formatter = logging.Formatter("%(message)s")
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in map(formatter.format, found) if words in text]


@ways
def test_a_database_that_is_away_is_a_line_without_frames(
    broker: BrokerProcess, postgres: Server, topic: str, group: str, by: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank("postgresql", postgres)
    away, backends = False, []
    nowhere = f"host=127.0.0.1 port={free_port()} dbname=x user=x"

    def opening() -> Any:
        if away:
            return psycopg.connect(nowhere)
        connection = bank.open()
        backends.append(connection.info.backend_pid)
        return connection

    with Client(broker.url, group=group) as ts:
        ts.create_topic(topic, queues=1)

        @ts.subscribe(topic, exactly_once=opening, by=by, concurrency=1)
        def handle(message: Message, connection: Any) -> None:
            bank.note(connection, message.text)

        ts.start()
        ts.send(topic, "before")
        eventually(lambda: bank.notes() == ["before"])
        away = True
        with bank.connection() as admin:
            for pid in backends:
                admin.cursor().execute("select pg_terminate_backend(%s)", (pid,))
            admin.commit()
        ts.send(topic, "meanwhile")
        eventually(lambda: shown(caplog, "no connection to the database"))
        away = False
        eventually(lambda: bank.notes() == ["before", "meanwhile"])
    told = shown(caplog, group)
    assert any("ConnectionLost: no transaction can begin" in text for text in told), told
    assert [text for text in told if "\n" in text] == []


def deep(text: str) -> None:
    raise RuntimeError(f"not {text}")


class FailsOnce:
    def __init__(self, bank: Bank) -> None:
        self.bank, self.failed = bank, False

    def handle(self, message: Message, connection: Any) -> None:
        if not self.failed:
            self.failed = True
            deep(message.text)
        self.bank.note(connection, message.text)

    async def handle_async(self, message: Message, connection: Any) -> None:
        self.handle(message, connection)


def names_of_frames(text: str) -> list[str]:
    return [line.rpartition(" in ")[2] for line in text.splitlines() if line.startswith("  File ")]


@ways
def test_what_a_handler_raises_is_shown_from_the_handler_on(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(broker.url, group=group) as ts:
        ts.send(topic, "today")
        ts.subscribe(topic, exactly_once=bank.open, by=by)(FailsOnce(bank).handle)
        ts.start()
        eventually(lambda: bank.notes() == ["today"])
    (told,) = shown(caplog, "RuntimeError: not today")
    assert names_of_frames(told) == ["handle", "deep"]


@ways
async def test_so_is_what_a_coroutine_raises(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(broker.url, group=group) as ts:
        await ts.send(topic, "today")
        ts.subscribe(topic, exactly_once=bank.open, by=by)(FailsOnce(bank).handle_async)
        await ts.start()
        while not bank.notes():
            await asyncio.sleep(0.02)
    (told,) = shown(caplog, "RuntimeError: not today")
    assert names_of_frames(told) == ["handle_async", "handle", "deep"]


async def test_a_store_that_moves_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    asked = 0

    async def once() -> float:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Moved("The store has another owner now")
        return 60.0

    tasks = Tasks()
    tasks.start(repeat("polling for checks", once))
    while asked < 2:
        await asyncio.sleep(0.01)
    await tasks.cancel()
    (told,) = [record for record in caplog.records if "another owner" in record.getMessage()]
    assert told.levelno == logging.DEBUG
