"""Consume, change and produce in one local transaction; and what a handler's code may do to its connection."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from border_support import KINDS, MYSQL_DRIVERS, Open, kinds, opener
from client_support import Bank, values_in
from test_client_borders_ended import ENDS, lose_a_deadlock

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from tallystick import AsyncClient, errors
from tallystick.client.transactions.modes import CheckBackBlock
from tallystick.client.transactions.script import nothing

bys = pytest.mark.parametrize("by", ["inbox", "offset"])


@pytest.fixture
def bank(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    engine = KINDS[kind][0]
    server = {"postgresql": "postgres", "mysql": "mariadb"}.get(engine)
    return Bank(engine, request.getfixturevalue(server) if server else tmp_path / "bank.db")


def traces(bank: Bank, by: str) -> int:
    """How many messages the consumer's database says it has handled."""
    if by == "inbox":
        return len(bank.rows("select * from tallystick_inbox"))
    return sum(int(row[0]) for row in bank.rows("select next_offset from tallystick_offset"))


PRODUCERS = kinds(
    "sqlite3",
    "psycopg",
    "psycopg-autocommit",
    "psycopg2",
    "psycopg2-autocommit",
    "orm-psycopg",
    "pymysql",
    "orm-pymysql",
)


@PRODUCERS
@bys
@pytest.mark.parametrize("mode", ["check-back", "outbox"])
def test_a_handler_consumes_changes_and_produces_as_one(
    broker: BrokerProcess, bank: Bank, kind: str, topic: str, group: str, by: Any, mode: Any
) -> None:
    """Every third message fails once, after everything was done: nothing of it remains, and it comes again."""
    failures = itertools.count(1)
    with opener(bank, kind) as open_connection, tallystick.Client(broker.url, group=group, wait=True) as ts:

        @ts.subscribe(topic, exactly_once=open_connection, by=by, mode=mode)
        def handle(message: tallystick.Message, connection: Any, tx: Any) -> None:
            number = message.json()
            Open(connection, bank).note(f"handled {number:02d}")
            tx.send(f"{topic}-out", number * 10)
            tx.call("http://127.0.0.1:9/never", {"number": number})
            if next(failures) % 3 == 0:
                raise KeyError("a bug")

        for number in range(10):
            ts.send(topic, number)
        ts.start()
        eventually(lambda: len(bank.notes()) == 10, "all are handled")
        eventually(lambda: len(values_in(broker.url, f"{topic}-out")) == 10, "all are sent")
    assert bank.notes() == [f"handled {number:02d}" for number in range(10)]
    assert values_in(broker.url, f"{topic}-out") == [number * 10 for number in range(10)]
    assert traces(bank, by) == 10


@kinds("sqlite3", "psycopg", "pymysql")
@bys
def test_a_commit_that_the_broker_never_hears_of_is_found_by_the_check_back(
    broker: BrokerProcess, bank: Bank, kind: str, topic: str, group: str, by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckBackBlock, "after_commit", lambda *_: nothing())
    with opener(bank, kind) as open_connection, tallystick.Client(broker.url, group=group, wait=True) as ts:

        @ts.subscribe(topic, exactly_once=open_connection, by=by)
        def handle(message: tallystick.Message, connection: Any, tx: Any) -> None:
            Open(connection, bank).note("handled")
            tx.send(f"{topic}-out", message.json())

        ts.send(topic, 1)
        ts.start()
        eventually(lambda: values_in(broker.url, f"{topic}-out") == [1], "the check-back finds it committed")
    assert (bank.notes(), traces(bank, by)) == (["handled"], 1)


@kinds("sqlite3", "psycopg", "psycopg-autocommit", "pymysql", "orm-sqlite", "orm-psycopg", "orm-pymysql")
@bys
@pytest.mark.parametrize("producing", [False, True])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_handler_that_ends_its_transaction_is_told_and_nothing_is_acknowledged(
    broker: BrokerProcess,
    bank: Bank,
    kind: str,
    topic: str,
    group: str,
    by: Any,
    producing: bool,
    end: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with opener(bank, kind) as open_connection, tallystick.Client(broker.url, group=group, wait=True) as ts:

        def handle(message: tallystick.Message, connection: Any) -> None:
            conn = Open(connection, bank)
            conn.note("effect")
            ENDS[end][0](conn)

        def handle_and_send(message: tallystick.Message, connection: Any, tx: Any) -> None:
            tx.send(f"{topic}-out", 1)
            handle(message, connection)

        ts.subscribe(topic, exactly_once=open_connection, by=by)(handle_and_send if producing else handle)
        ts.send(topic, 1)
        ts.start()
        eventually(lambda: "ended before its commit" in caplog.text, "the handler is told")
        # What the handler committed by itself, its inbox row or offset included, stands: the message is not repeated.
        if end == "rollback":
            assert (ts.stats.handled, traces(bank, by), bank.notes()) == (0, 0, [])
    assert values_in(broker.url, f"{topic}-out") == []


@kinds("pymysql", "pymysql-autocommit", "orm-pymysql", *MYSQL_DRIVERS)
@bys
def test_a_handler_that_swallows_a_deadlock_has_its_effect_once(
    broker: BrokerProcess, bank: Bank, kind: str, topic: str, group: str, by: Any
) -> None:
    """The database has undone the inbox row, or the offset, with the rest; the message comes again."""
    attempts = itertools.count(1)
    with opener(bank, kind) as open_connection, tallystick.Client(broker.url, group=group, wait=True) as ts:

        @ts.subscribe(topic, exactly_once=open_connection, by=by, concurrency=1)
        def handle(message: tallystick.Message, connection: Any) -> None:
            conn = Open(connection, bank)
            if next(attempts) == 1:
                lose_a_deadlock(conn)
                if kind.endswith("-autocommit"):
                    return  # whatever it did now would be committed by itself
            conn.note("effect")

        ts.send(topic, 1)
        ts.start()
        eventually(lambda: ts.stats.handled == 1, "it is handled in the end")
    assert (bank.notes(), traces(bank, by), next(attempts)) == (["effect"], 1, 3)


@kinds("sqlite3", "psycopg", "orm-psycopg", "pymysql")
@bys
def test_a_block_on_the_handlers_own_connection_is_refused_with_advice(
    broker: BrokerProcess, bank: Bank, kind: str, topic: str, group: str, by: Any
) -> None:
    said: list[str] = []
    with opener(bank, kind) as open_connection, tallystick.Client(broker.url, group=group, wait=True) as ts:

        @ts.subscribe(topic, exactly_once=open_connection, by=by)
        def handle(message: tallystick.Message, connection: Any) -> None:
            Open(connection, bank).note("effect")
            try:
                with ts.transaction(connection) as tx:
                    tx.send(f"{topic}-out", 1)
            except tallystick.TallystickError as refused:
                said.append(str(refused))

        ts.send(topic, 1)
        ts.start()
        eventually(lambda: ts.stats.handled == 1, "the handler goes on, its transaction unharmed")
    assert "def handler(message, conn, tx)" in said[0]
    assert (bank.notes(), traces(bank, by), values_in(broker.url, f"{topic}-out")) == (["effect"], 1, [])


@kinds("psycopg")
@pytest.mark.parametrize("by", ["inbox", "offset"])
async def test_an_asynchronous_handler_produces_too(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: Any
) -> None:
    import asyncio

    import psycopg

    done = asyncio.Event()
    async with AsyncClient(broker.url, group=group, wait=True) as ts:

        @ts.subscribe(topic, exactly_once=lambda: psycopg.AsyncConnection.connect(**bank.parameters()), by=by)
        async def handle(message: tallystick.Message, connection: Any, tx: Any) -> None:
            await connection.execute("insert into ledger values ('handled')")
            tx.send(f"{topic}-out", 1)
            done.set()

        await ts.send(topic, 1)
        await ts.start()
        await asyncio.wait_for(done.wait(), 20)
        await ts.stop()
    assert (bank.notes(), traces(bank, by), values_in(broker.url, f"{topic}-out")) == (["handled"], 1, [1])


@kinds("sqlite3")
def test_what_a_handler_may_ask_for_is_checked_when_it_is_registered(ts: tallystick.Client, bank: Bank) -> None:
    with pytest.raises(errors.InvalidRequest, match="exactly_once"):
        ts.subscribe("orders")(lambda message, connection, tx: None)
    with pytest.raises(errors.InvalidRequest, match=r"\(message, conn, tx\)"):
        ts.subscribe("orders", exactly_once=bank.open)(lambda message, connection, tx, more: None)


@kinds("sqlite3")
@bys
@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_handler_that_would_end_the_program_fails_its_message_only(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: Any, raised: type[BaseException]
) -> None:
    attempts = itertools.count(1)
    with tallystick.Client(broker.url, group=group, wait=True) as ts:

        @ts.subscribe(topic, exactly_once=bank.open, by=by)
        def handle(message: tallystick.Message, connection: Any) -> None:
            bank.note(connection, "handled")
            if next(attempts) == 1:
                raise raised

        ts.send(topic, 1)
        ts.start()
        eventually(lambda: ts.stats.handled == 1, "it is handled at the next attempt")
        assert ts.stats.handler_failures == 1
        ts.send(topic, 2)
        eventually(lambda: ts.stats.handled == 2, "and the client goes on")
    assert bank.notes() == ["handled", "handled"]


@kinds("psycopg")
@bys
async def test_a_cancellation_inside_of_an_asynchronous_handler_is_a_failure_like_others(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, by: Any
) -> None:
    import asyncio

    import psycopg

    attempts = itertools.count(1)
    async with AsyncClient(broker.url, group=group, wait=True) as ts:

        @ts.subscribe(topic, exactly_once=lambda: psycopg.AsyncConnection.connect(**bank.parameters()), by=by)
        async def handle(message: tallystick.Message, connection: Any) -> None:
            await connection.execute("insert into ledger values ('handled')")
            if next(attempts) == 1:
                task = asyncio.ensure_future(asyncio.sleep(60))
                asyncio.get_running_loop().call_soon(task.cancel)
                await task

        await ts.send(topic, 1)
        await ts.start()
        for _ in range(400):
            if ts.stats.handled:
                break
            await asyncio.sleep(0.05)
        assert (ts.stats.handled, ts.stats.handler_failures) == (1, 1)
        await ts.stop()
    assert bank.notes() == ["handled"]
