"""Openers that return an unsupported connection: it is closed, and they are called again after a long pause."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from client_support import Bank
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import QueuePool

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from tallystick import AsyncClient, CheckBack, Client
from tallystick.client import handlers
from tallystick.client.base import opened_connections
from tallystick.client.transactions import outbox
from tallystick.core.errors import InvalidRequest
from tallystick.core.message import OutgoingMessage

LOG = "returned an unsupported one"


class Proxy:
    """A connection in a wrapper, such as one for tracing."""

    def __init__(self, connection: Any) -> None:
        self._connection, self.closed = connection, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def close(self) -> None:
        self.closed = True
        self._connection.close()


class AsyncProxy(Proxy):
    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().close()


class Opened:
    """What an opener has returned."""

    def __init__(self, bank: Bank, kind: type[Proxy] = Proxy) -> None:
        self._bank, self._kind = bank, kind
        self.all: list[Any] = []

    def open(self) -> Any:
        self.all.append(self._kind(sqlite3.connect(self._bank.path, check_same_thread=False)))
        return self.all[-1]

    async def open_async(self) -> Any:
        return self.open()

    @property
    def closed(self) -> bool:
        return all(one.closed for one in self.all)


@pytest.fixture
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "REDRIVE_SECONDS", 0.05)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.levelno >= logging.WARNING and LOG in one.message]


@pytest.mark.usefixtures("_quick_looks")
def test_every_use_of_one_opener_closes_it_and_shares_one_pause(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Opened(bank)
    with Client(broker.url, group=group, database=opened.open) as ts:
        eventually(lambda: opened.all, "a look at the outbox")
        with bank.connection() as connection, ts.transaction(connection) as tx:  # learning
            bank.note(connection, "paid")
            tx.send(topic, 1)
        gid = ts.new_gid()  # a check-back from nowhere
        ts.prepare(gid, [OutgoingMessage(topic, b"")], check=CheckBack(after=0.2))
        eventually(lambda: ts.stats.checks_unknown, "an answer to a check-back")
    assert len(opened.all) == 1
    assert opened.closed
    assert len(errors(caplog)) == 1
    assert not [one for one in caplog.records if "again in" in one.message and LOG in one.message]


@pytest.mark.parametrize("kind", [Proxy, AsyncProxy])
@pytest.mark.usefixtures("_quick_looks")
async def test_what_an_awaited_opener_returned_is_closed_too(
    broker: BrokerProcess, bank: Bank, group: str, caplog: pytest.LogCaptureFixture, kind: type[Proxy]
) -> None:
    opened = Opened(bank, kind)
    async with AsyncClient(broker.url, group=group, database=opened.open_async) as ts:
        await ts.start()
        await asyncio.to_thread(eventually, lambda: errors(caplog), "the error in the log")
    assert len(opened.all) == 1
    assert opened.closed


@pytest.mark.usefixtures("_quick_looks")
def test_an_opener_that_is_cured_is_used_again_after_the_pause(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_connections, "REFUSED_SECONDS", 0.2)
    monkeypatch.setattr(outbox, "REFUSED_SECONDS", 0.2)
    opened = Opened(bank)
    good: list[int] = []

    def opener() -> Any:
        if len(opened.all) < 2:
            return opened.open()
        good.append(1)
        return sqlite3.connect(bank.path)

    with Client(broker.url, group=group, database=opener):
        eventually(lambda: len(good) > 1, "looks at the outbox")
    assert len(opened.all) == 2
    assert opened.closed


@pytest.mark.parametrize("on_loop", [True, False])
async def test_a_consumer_closes_what_it_refuses(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, on_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Opened(bank)
    async with AsyncClient(broker.url, group=group, wait=True) as ts:
        if on_loop:

            @ts.subscribe(topic, exactly_once=opened.open_async, concurrency=1)
            async def handle(message: tallystick.Message, connection: Any) -> None: ...

        else:

            @ts.subscribe(topic, exactly_once=opened.open, concurrency=1)
            def handle_on_a_thread(message: tallystick.Message, connection: Any) -> None: ...

        await ts.start()
        await ts.send(topic, 1)

        def twice() -> bool:
            return sum("RefusedOpener" in one.message for one in caplog.records) >= 2

        await asyncio.to_thread(eventually, twice, "two attempts at the message")
    assert len(opened.all) == 1
    assert opened.closed


def test_handlers_of_check_backs_close_what_they_refuse(bank: Bank) -> None:
    opened = Opened(bank)
    app = handlers.wsgi(opened.open)
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "", "QUERY_STRING": "gid=g-1"}
    statuses: list[str] = []
    for _ in range(3):
        app(environ, lambda status, headers: statuses.append(status))  # type: ignore[arg-type, misc]
    assert statuses == ["500 Internal Server Error"] * 3
    assert len(opened.all) == 1
    assert opened.closed


async def test_a_handler_on_a_loop_closes_what_it_refuses(bank: Bank) -> None:
    for open_one in (lambda opened: opened.open, lambda opened: opened.open_async):
        opened = Opened(bank)
        app: Any = handlers.asgi(open_one(opened))
        scope = {"type": "http", "method": "GET", "path": "", "query_string": b"gid=g-1", "headers": []}
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        for _ in range(3):
            await app(scope, None, send)
        assert [one["status"] for one in sent[::2]] == [500] * 3
        assert len(opened.all) == 1
        assert opened.closed


def test_the_engine_s_raw_connection_is_refused_at_once(bank: Bank) -> None:
    engine = create_engine(bank.url("sqlite"))
    with pytest.raises(InvalidRequest, match=r"raw_connection.*Give `database=engine\.connect`"):
        Client("http://127.0.0.1:9", group="shop", database=engine.raw_connection)
    async_engine = create_async_engine(bank.url("sqlite+aiosqlite"))
    with pytest.raises(InvalidRequest, match=r"raw_connection.*Give `database=engine\.connect`"):
        AsyncClient("http://127.0.0.1:9", group="shop", database=async_engine.raw_connection)


@pytest.mark.usefixtures("_quick_looks")
def test_a_raw_connection_from_a_function_goes_back_to_the_engine(
    broker: BrokerProcess, bank: Bank, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_engine(bank.url("sqlite"), poolclass=QueuePool, pool_size=1, max_overflow=0)
    with Client(broker.url, group=group, database=lambda: engine.raw_connection()):
        eventually(lambda: errors(caplog), "the error in the log")
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    engine.dispose()


@pytest.mark.usefixtures("_quick_looks")
async def test_a_raw_connection_of_an_async_engine_goes_back_too(
    broker: BrokerProcess, bank: Bank, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_async_engine(bank.url("sqlite+aiosqlite"), pool_size=1, max_overflow=0)
    async with AsyncClient(broker.url, group=group, database=lambda: engine.raw_connection()) as ts:
        await ts.start()
        await asyncio.to_thread(eventually, lambda: errors(caplog), "the error in the log")
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        assert engine.pool.checkedin() == 1, "closed in a greenlet, it is as good as before"  # type: ignore[attr-defined]
    await engine.dispose()


@pytest.mark.parametrize("wrong", ["a pool", "a cursor"])
@pytest.mark.usefixtures("_quick_looks")
def test_what_belongs_to_the_service_stays_open(
    broker: BrokerProcess, bank: Bank, group: str, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    engine = create_engine(bank.url("sqlite"))
    connection = sqlite3.connect(bank.path, check_same_thread=False)
    cursor = connection.cursor()
    opener: Callable[[], Any] = (lambda: engine) if wrong == "a pool" else (lambda: cursor)
    with Client(broker.url, group=group, database=opener):
        eventually(lambda: errors(caplog), "the error in the log")
    cursor.execute("select 1")
    connection.close()
    engine.dispose()
