"""The half messages of a block travel while it marks its transaction: whatever fails of the two, both or neither."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from client_support import Bank, pay, values_in
from test_client_combining import PATIENCE, Interrupt, prepare, stopped, together, way_of

from brokers import BrokerProcess, running_broker
from eventually import eventually
from tallystick import AsyncClient, CheckBack, Client, errors
from tallystick.barrier.errors import TransactionLost
from tallystick.client.base.databases import EXPECT_AFTER
from tallystick.client.transactions.local import LocalTransaction
from tallystick.link import Link

LONG = CheckBack(after=600)  # so that no check-back mends what is to be shown
QUICK = {"check_after": "300ms", "check_interval": "100ms", "check_interval_cap": "500ms"}
MARK = "insert into tallystick_barrier"
OF_A_BLOCK = ("combiner.py", "awaited.py", "wire.py", "producer.py", "modes.py", "block.py", "local.py", "script.py")


def settle_in(ts: Client, bank: Bank, topic: str) -> None:
    """The first blocks of a process find out where they are; the next ones expect it."""
    for _ in range(EXPECT_AFTER):
        pay(ts, bank, f"{topic}-before", 0, note="before")


def undecided(broker: BrokerProcess, group: str) -> list[str]:
    with Link(broker.url) as link:
        return [one["gid"] for one in link.get("transactions", state="prepared", group=group)["transactions"]]


def paid(bank: Bank) -> list[str]:
    return [note for note in bank.notes() if note != "before"]


@contextlib.contextmanager
def failing_marks(bank: Bank) -> Iterator[None]:
    refuse = "begin select raise(abort, 'no marks today'); end"
    bank.run(f"create trigger no_marks before insert on tallystick_barrier {refuse}")
    yield
    bank.run("drop trigger no_marks")


def test_the_mark_is_made_while_the_broker_is_at_work(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    with Client(broker.url, group=group, check=LONG) as ts:
        settle_in(ts, bank, topic)
        ran: list[str] = []

        def block() -> None:
            with bank.connection() as connection:
                connection.set_trace_callback(ran.append)
                pay(ts, bank, topic, 1, connection=connection)

        with stopped(broker):
            thread = threading.Thread(target=block)
            thread.start()
            eventually(lambda: any(statement.startswith(MARK) for statement in ran), "it has marked")
            assert way_of_only(ts)._sending, "and its half messages are under way"
            assert not any(statement.lower().startswith("commit") for statement in ran)
        thread.join(PATIENCE)
    assert values_in(broker.url, topic) == [1]


def way_of_only(ts: Client) -> Any:
    return ts._producer().connection.brokers.for_new()[0].threads


def test_a_mark_that_fails_takes_the_half_messages_back(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    with Client(broker.url, group=group, check=LONG) as ts:
        settle_in(ts, bank, topic)
        connections = way_of_only(ts)._wire.connections
        with failing_marks(bank), pytest.raises(sqlite3.DatabaseError, match="no marks today"):
            pay(ts, bank, topic, 1)
        pay(ts, bank, topic, 2)
        assert way_of_only(ts)._wire.connections == connections, "the connection to the broker has gone on"
        eventually(lambda: not undecided(broker, group), "nothing is left to a check-back")
    assert (values_in(broker.url, topic), paid(bank)) == ([2], ["paid"])


def test_a_transaction_that_was_ended_takes_the_half_messages_back(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    with Client(broker.url, group=group, check=LONG) as ts, bank.connection() as connection:
        settle_in(ts, bank, topic)
        with pytest.raises(TransactionLost):
            lose(ts, bank, connection, topic)
        eventually(lambda: not undecided(broker, group), "nothing is left to a check-back")
        pay(ts, bank, topic, 2)
    assert (values_in(broker.url, topic), paid(bank)) == ([2], ["paid"])


def lose(ts: Client, bank: Bank, connection: Any, topic: str) -> None:
    with ts.transaction(connection) as tx:
        bank.note(connection, "lost")
        tx.send(topic, 1)
        connection.rollback()


async def test_an_asynchronous_block_whose_mark_fails(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    async def block(ts: AsyncClient, name: str, value: int) -> None:
        with bank.connection() as connection:
            async with ts.transaction(connection, wait=True) as tx:
                bank.note(connection, "paid" if name == topic else "before")
                tx.send(name, value)

    async with AsyncClient(broker.url, group=group, check=LONG) as ts:
        for _ in range(EXPECT_AFTER):
            await block(ts, f"{topic}-before", 0)
        with failing_marks(bank), pytest.raises(sqlite3.DatabaseError, match="no marks today"):
            await block(ts, topic, 1)
        await block(ts, topic, 2)
        eventually(lambda: not undecided(broker, group), "nothing is left to a check-back")
    assert (values_in(broker.url, topic), paid(bank)) == ([2], ["paid"])


def test_a_broker_that_goes_away_meanwhile(bank: Bank, topic: str, group: str) -> None:
    with running_broker(**QUICK) as broker:
        with Client(broker.url, group=group, timeout=1.0) as ts:
            settle_in(ts, bank, topic)
            with stopped(broker), pytest.raises(errors.BrokerUnavailable):
                pay(ts, bank, topic, 1)
            eventually(lambda: not undecided(broker, group), "it is rolled back")
            pay(ts, bank, topic, 2)
        assert (values_in(broker.url, topic), paid(bank)) == ([2], ["paid"])


def test_an_interrupt_in_the_mark_leaves_others_their_answers(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that is interrupted has sent the others' operations with its own."""
    mark = LocalTransaction.mark
    sent, others_wait = threading.Event(), threading.Event()

    def interrupted(self: LocalTransaction, gid: str, table: str) -> Any:
        if threading.current_thread().name == "interrupted":
            sent.set()
            assert others_wait.wait(PATIENCE)
            raise KeyboardInterrupt
        return mark(self, gid, table)

    monkeypatch.setattr(LocalTransaction, "mark", interrupted)
    with Client(broker.url, group=group, check=LONG) as ts:
        settle_in(ts, bank, topic)
        came: list[BaseException] = []

        def block() -> None:
            try:
                pay(ts, bank, topic, 1)
            except BaseException as failure:
                came.append(failure)

        thread = threading.Thread(target=block, name="interrupted")
        thread.start()
        assert sent.wait(PATIENCE)
        way = way_of_only(ts)

        def work(number: int) -> str:
            if number == 0:
                eventually(lambda: len(way.waiting) >= 3, "the others wait for the one who sends")
                others_wait.set()
                return "looked"
            return type(prepare(ts, topic, number)).__name__

        assert together(work, 4) == ["looked", "str", "str", "str"]
        thread.join(PATIENCE)
        assert [type(failure) for failure in came] == [KeyboardInterrupt]
        eventually(lambda: len(undecided(broker, group)) == 0, "its own is rolled back")
    assert (values_in(broker.url, topic), paid(bank)) == ([], [])


def under(interrupt: Interrupt, block: Callable[[], Any]) -> None:
    """In a thread: an interrupt at an `except` line leaves the thread with an exception that it seems to handle."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_under, interrupt, block).result()


def _under(interrupt: Interrupt, block: Callable[[], Any]) -> None:
    sys.settrace(interrupt)
    try:
        block()
    except KeyboardInterrupt:
        assert interrupt.passed >= interrupt.at
    finally:
        sys.settrace(None)


def numbers(bank: Bank) -> list[int]:
    return sorted(map(int, paid(bank)))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("_left_sockets")
@pytest.mark.parametrize("begin", range(3))
def test_ctrl_c_at_any_line_of_a_block_leaves_both_or_neither(bank: Bank, topic: str, group: str, begin: int) -> None:
    with running_broker(**QUICK) as broker:
        with Client(broker.url, group=group, timeout=5.0) as ts:
            settle_in(ts, bank, topic)
            way_of(ts)

            def block(number: int, **options: Any) -> None:
                pay(ts, bank, topic, number, note=f"{number}", **options)

            rehearsal = Interrupt(0, OF_A_BLOCK)
            under(rehearsal, lambda: block(0, wait=False))
            assert rehearsal.passed > 100
            for at in range(1 + begin, rehearsal.passed + 1, 3):
                under(Interrupt(at, OF_A_BLOCK), lambda at=at: block(at, wait=False))
            block(rehearsal.passed + 1)
            eventually(lambda: values_in(broker.url, topic) == numbers(bank), "the same are there and there")
            eventually(lambda: not undecided(broker, group), "nothing is undecided")
        assert values_in(broker.url, topic) == numbers(bank)
        assert {0, rehearsal.passed + 1} < set(numbers(bank))
