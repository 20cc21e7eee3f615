"""A client that is closed while threads use it: everybody is told, in words, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter

import pytest
from client_support import Bank, pay, values_in

from brokers import BrokerProcess
from eventually import eventually_equal
from hanging_server import hanging_server
from tallystick import Client, errors
from tallystick.client.connection.loop_connection import _consequences
from tallystick.client.connection.portal import Portal
from tallystick.client.connection.waiting import UNCONFIRMED, GivenUp

THREADS = 4
ROUNDS = 25
PATIENCE = 30.0


def loops() -> int:
    return sum(thread.name == "tallystick-client" for thread in threading.enumerate())


def test_a_call_that_comes_while_the_event_loop_ends() -> None:
    """It takes several turns of the loop, of which there may be one more, or none."""

    async def turns() -> str:
        for _ in range(20):
            await asyncio.sleep(0)
        return "done"

    came: Counter[str] = Counter()
    for number in range(200):
        portal = Portal()

        def work(portal: Portal = portal) -> None:
            try:
                while True:
                    came[portal.call(turns)] += 1
            except errors.TallystickError as closed:
                came[str(closed)] += 1

        threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        time.sleep(number % 10 * 0.0005)
        portal.stop()
        for thread in threads:
            thread.join(PATIENCE)
        assert [thread.is_alive() for thread in threads] == [False] * THREADS, number
    assert set(came) == {"done", "the client is closed; make a new one"}


def test_closing_while_threads_begin_their_first_blocks(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    """The first block of a process has much to learn, on the event loop that is being ended."""
    raised: Counter[type] = Counter()
    for number in range(ROUNDS):
        ts = Client(broker.url, group=group, timeout=3.0)

        def work(ts: Client = ts) -> None:
            with bank.connection() as connection:
                for _ in range(3):
                    try:
                        pay(ts, bank, topic, 1, connection=connection, wait=False)
                    except errors.TallystickError as closed:
                        raised[type(closed)] += 1
                    except BaseException as failure:
                        raised[type(failure)] += 1

        threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        time.sleep(number * 0.0015)
        ts.close()
        for thread in threads:
            thread.join(PATIENCE)
        assert [thread.is_alive() for thread in threads] == [False] * THREADS, number
    assert [kind for kind in raised if not issubclass(kind, errors.TallystickError)] == []
    with Client(broker.url, group=group, database=bank.open):  # for what was left to the check-back
        eventually_equal(lambda: len(values_in(broker.url, topic)), len(bank.notes()))


def test_a_block_on_a_closed_client_leaves_nothing_behind(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    ts = Client(broker.url, group=group)
    pay(ts, bank, topic, 1)
    ts.close()
    before = loops()
    for _ in range(3):
        with pytest.raises(errors.TallystickError, match="the client is closed"):
            pay(ts, bank, topic, 2)
    with contextlib.suppress(errors.TallystickError):
        ts.outcome("x")
    assert loops() <= before
    assert (values_in(broker.url, topic), len(bank.notes())) == ([1], 1)


def test_what_is_given_up_is_said_to_be_left_to_what_finishes_it() -> None:
    given_up = GivenUp({"commit": 1, "rollback": 1, "send": 2, UNCONFIRMED: 3, "ack": 1})
    assert list(_consequences(given_up)) == [
        "2 operations on transactions unanswered, the outcome is left to the check-back",
        "2 sends unanswered, rows of an outbox stay in their table for the re-driver",
        "3 messages of level 0 unanswered, may be lost",
        "1 operation of consumers unanswered, their leases end by themselves",
    ]


def test_messages_of_level_0_that_wait_are_not_left_to_the_check_back(caplog: pytest.LogCaptureFixture) -> None:
    with hanging_server() as silent:
        client = Client(silent.url, timeout=2.0)
        client.send("orders", 1, level=0)
        client.close(timeout=0.2)
    (said,) = [record.getMessage() for record in caplog.records if "client closed" in record.getMessage()]
    assert said == "client closed: 1 message of level 0 unanswered, may be lost"
