"""A block returns once its local commit is durable; the broker hears of it behind its back, and surely."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from client_support import Bank, pay, values_in
from test_client_forks import run

from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from eventually import eventually, eventually_async, eventually_equal
from tallystick import AsyncClient, CheckBack, Client, errors
from tallystick.client.connection import combiner

LONG = CheckBack(after=600)  # so that no check-back tells what the client is to tell
COMMIT = b"\xa6commit"
SEND = b"\xa4send"


async def pay_async(ts: AsyncClient, bank: Bank, topic: str, value: int, **options: Any) -> str:
    with contextlib.closing(bank.open()) as connection:
        async with ts.transaction(connection, **options) as tx:
            bank.note(connection, f"{value}")
            tx.send(topic, value)
        return tx.gid


@pytest.mark.parametrize(("mode", "told"), [("check-back", COMMIT), ("outbox", SEND)])
def test_a_block_returns_before_the_broker_has_heard_of_it(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, mode: Any, told: bytes
) -> None:
    """It is told again and again in the background, until it has heard."""
    with lossy_proxy(broker.port) as proxy, Client(proxy.url, group=group, check=LONG) as ts:
        pay(ts, bank, topic, 0, mode=mode)
        proxy.refusing = told
        pay(ts, bank, topic, 1, mode=mode, wait=None)
        assert len(bank.notes()) == 2
        assert values_in(broker.url, topic) == [0]
        eventually(lambda: proxy.cut > 1)
        proxy.refusing = None
        eventually_equal(lambda: values_in(broker.url, topic), [0, 1])
        assert ts.stats.commits_left_to_check == 0


@pytest.mark.parametrize(("mode", "told"), [("check-back", COMMIT), ("outbox", SEND)])
async def test_an_async_block_returns_before_the_broker_has_heard_of_it(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, mode: Any, told: bytes
) -> None:
    with lossy_proxy(broker.port) as proxy:
        async with AsyncClient(proxy.url, group=group, check=LONG) as ts:
            await pay_async(ts, bank, topic, 0, mode=mode, wait=True)
            proxy.refusing = told
            await pay_async(ts, bank, topic, 1, mode=mode)
            assert values_in(broker.url, topic) == [0]
            proxy.refusing = None
            await eventually_async(lambda: _reads(broker.url, topic, [0, 1]))


async def _reads(url: str, topic: str, values: list[int]) -> bool:
    return values_in(url, topic) == values


def test_with_wait_the_messages_are_visible(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    with Client(broker.url, group=group, check=LONG) as ts, Client(broker.url, group=group, wait=True) as waiting:
        assert ts.outcome(pay(ts, bank, topic, 1, wait=True)) == "committed"
        assert ts.outcome(pay(waiting, bank, topic, 2, wait=None)) == "committed"
        with bank.connection() as connection, ts.transaction(connection) as tx:
            tx.send(topic, 3)
            tx.commit(wait=True)
            assert ts.outcome(tx.gid) == "committed"


async def test_with_wait_the_messages_of_an_async_block_are_visible(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    async with AsyncClient(broker.url, group=group, wait=True) as ts:
        assert await ts.outcome(await pay_async(ts, bank, topic, 1)) == "committed"


def test_the_broker_is_told_at_once_if_nobody_else_is_there(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    with Client(broker.url, group=group, check=LONG) as ts:
        gid = pay(ts, bank, topic, 1, wait=None)
        eventually_equal(lambda: ts.transaction_state(gid).state, "committed")
        assert ts.transaction_state(gid).resolved_by == "producer"


def test_closing_tells_the_broker_of_the_last_blocks(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    for number in range(10):
        with Client(broker.url, group=group, check=LONG) as ts:
            pay(ts, bank, topic, number, wait=None, mode="outbox" if number % 2 else "check-back")
        assert values_in(broker.url, topic) == list(range(number + 1))
    assert bank.rows("select gid from tallystick_outbox") == []


ENDING = """
import sqlite3, sys, threading, time
url, path, topic, way, imported = sys.argv[1:]
if imported == "before":
    import multiprocessing
import tallystick

ts = tallystick.Client(url, group="ending", check=tallystick.CheckBack(after=600))


def later(number):
    # In a thread that outlives the child's own function: Python waits for it.
    threading.Thread(target=lambda: (time.sleep(0.5), block(number))).start()


def block(number):
    connection = sqlite3.connect(path, timeout=30)
    with ts.transaction(connection) as tx:
        connection.execute("insert into ledger values (?)", (str(number),))
        tx.send(topic, number)
    connection.close()


if way == "exit":
    block(1)
else:
    block(0)
    import multiprocessing
    child = multiprocessing.get_context("fork").Process(target=later if way == "thread" else block, args=(1,))
    child.start()
    child.join()
    assert child.exitcode == 0
"""


@pytest.mark.parametrize("imported", ["before", "after"])  # multiprocessing, which the client itself does not need
@pytest.mark.parametrize("way", ["exit", "fork", "thread"])
def test_a_process_that_ends_right_after_a_block_has_told_the_broker(
    broker: BrokerProcess, bank: Bank, topic: str, way: str, imported: str
) -> None:
    run(ENDING, broker.url, str(bank.path), topic, way, imported)
    assert values_in(broker.url, topic) == ([1] if way == "exit" else [0, 1])


def test_what_waits_for_a_silent_broker_is_bounded(
    broker: BrokerProcess, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combiner, "WAITING_OPS", 3)
    monkeypatch.setattr(combiner, "TICK_SECONDS", 60.0)
    failures: list[BaseException | None] = []
    with Client(broker.url, group=group) as ts:
        ts.send(topic, 0)
        way = ts._producer().connection.brokers.for_new()[0].threads
        for _ in range(5):
            way.tell(b"", 10.0, stay=0, done=failures.append)
        assert [type(failure) for failure in failures] == [errors.Busy] * 2


def test_a_client_that_is_asked_for_an_outcome_tells_its_own_first(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    with Client(broker.url, group=group, check=LONG) as ts:
        gids = [pay(ts, bank, topic, number, wait=False) for number in range(10)]
        assert ts.outcome(gids[-1]) == "committed"
        found = [ts.outcome(pay(ts, bank, topic, number, wait=False)) for number in range(20)]
    assert found == ["committed"] * 20


async def test_an_async_client_that_is_asked_for_an_outcome_tells_its_own_first(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    async with AsyncClient(broker.url, group=group, check=LONG) as ts:
        found = [await ts.outcome(await pay_async(ts, bank, topic, number)) for number in range(20)]
    assert found == ["committed"] * 20


def test_a_message_without_a_transaction_takes_the_commit_of_a_block_along(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combiner, "TICK_SECONDS", 60.0)
    with Client(broker.url, group=group, check=LONG) as ts:
        pay(ts, bank, topic, 1, wait=False)
        ts.send(f"{topic}-other", 2)
        eventually_equal(lambda: values_in(broker.url, topic), [1])
