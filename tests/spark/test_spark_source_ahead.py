"""The source's task reads ahead: the same batches in the same order, errors in their place, and no thread left over."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from source_support import batch, big_topic, new_topic

from brokers import BrokerProcess
from eventually import eventually
from raw_client import RawClient
from tallystick.core.errors import BrokerUnavailable
from tallystick.link import Link
from tallystick.spark.source import messages
from tallystick.spark.source.ahead import read_ahead

SIZE = 800  # bytes of one of the batches


def made(count: int, taken: list[int] | None = None, error: Exception | None = None) -> Iterator[Any]:
    for number in range(count):
        if taken is not None:
            taken.append(number)
        yield pa.record_batch({"n": pa.array([number] * 100, pa.int64())})
    if error is not None:
        raise error


def number_of(one: Any) -> int:
    return int(one.column(0)[0].as_py())


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tallystick-ahead"]


def unwanted() -> None:
    raise AssertionError("nothing had to be given up")


@pytest.mark.parametrize("most", [1, SIZE, 3 * SIZE, 1_000 * SIZE])
def test_batches_come_in_their_order_whatever_the_bound(most: int) -> None:
    assert [number_of(one) for one in read_ahead(made(50), unwanted, most)] == list(range(50))
    assert threads() == []


def test_it_reads_as_far_as_the_bound_and_no_further() -> None:
    taken: list[int] = []
    reading = read_ahead(made(50, taken), lambda: None, 3 * SIZE)
    assert number_of(next(reading)) == 0
    # One is handed on, three are on the shelf, and the next waits for room.
    eventually(lambda: len(taken) == 5)
    assert number_of(next(reading)) == 1
    eventually(lambda: len(taken) == 6)
    reading.close()
    assert len(taken) == 6
    assert threads() == []


def test_an_error_comes_after_the_batches_before_it() -> None:
    reading = read_ahead(made(5, error=ValueError("broken")), unwanted, SIZE)
    assert [number_of(next(reading)) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="broken"):
        next(reading)
    assert threads() == []


def test_nothing_is_read_before_the_first_batch_is_asked_for() -> None:
    taken: list[int] = []
    read_ahead(made(5, taken), unwanted, SIZE).close()
    assert (taken, threads()) == ([], [])


def test_whoever_stops_early_ends_what_the_thread_waits_for() -> None:
    ended = threading.Event()
    waiting = threading.Event()

    def stuck() -> Iterator[Any]:
        yield from made(1)
        waiting.set()
        assert ended.wait(60)

    reading = read_ahead(stuck(), ended.set, SIZE)
    next(reading)
    assert waiting.wait(60)
    reading.close()
    assert ended.is_set()
    assert threads() == []


# --- with a broker -------------------------------------------------------------------------------------------------


def sockets() -> int:
    """How many connections this process has."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
        except FileNotFoundError:
            continue  # the directory that is being listed
    return found


def started(broker: BrokerProcess, client: RawClient) -> Iterator[Any]:
    reader = batch(broker, topic=big_topic(client), retryTimeout="10m")
    (part,) = reader.partitions()
    return reader.read(part)


def test_a_task_that_is_ended_early_leaves_neither_thread_nor_connection(
    broker: BrokerProcess, client: RawClient
) -> None:
    reading = started(broker, client)
    before = sockets()
    next(reading)
    assert (threads(), sockets()) == (["tallystick-ahead"], before + 1)
    reading.close()
    assert (threads(), sockets()) == ([], before)


@pytest.mark.full
@pytest.mark.fault
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_task_that_is_ended_while_the_broker_is_silent_or_gone(
    broker: BrokerProcess, client: RawClient, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread, which has room for everything, waits: for an answer, or for 10 minutes for another broker."""
    monkeypatch.setattr(messages, "AHEAD_BYTES", 1024**3)
    reading = started(broker, client)
    before = sockets()
    next(reading)
    if how == signal.SIGSTOP:
        os.kill(broker.pid, how)
    else:
        broker.kill()
    try:
        reading.close()
        assert (threads(), sockets()) == ([], before)
    finally:
        if how == signal.SIGSTOP:
            os.kill(broker.pid, signal.SIGCONT)
        else:
            broker.start()
            client.close()


@pytest.mark.full
@pytest.mark.fault
def test_a_broker_that_stays_away_is_an_error_of_the_task(broker: BrokerProcess, client: RawClient) -> None:
    reader = batch(broker, topic=big_topic(client), retryTimeout="300ms")
    (part,) = reader.partitions()
    reading = reader.read(part)
    next(reading)
    broker.kill()
    try:
        with pytest.raises(BrokerUnavailable, match="option 'url'"):
            list(reading)
        assert threads() == []
    finally:
        broker.start()
        client.close()


# --- the link ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [lambda link: link.get("info"), lambda link: link.post("topics", "t", "trim")])
def test_a_link_that_is_abandoned_asks_nobody(broker: BrokerProcess, ask: Callable[[Link], Any]) -> None:
    with Link(broker.url, patience=600) as link:
        link.abandon()
        with pytest.raises(BrokerUnavailable):
            ask(link)
        assert not link.rest(600)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_that_is_abandoned_while_it_waits(broker: BrokerProcess, client: RawClient, there: bool) -> None:
    """For a long answer, or for a broker that does not come."""
    topic = new_topic(client)
    raised: list[BaseException] = []

    def wait(link: Link, **asked: Any) -> None:
        try:
            link.get("topics", **asked)
        except BrokerUnavailable as error:
            raised.append(error)

    with Link(broker.url if there else "http://127.0.0.1:9", patience=600) as link:
        asked = {"position": link.get("topics", names=topic)["position"], "wait_ms": 10_000} if there else {}
        thread = threading.Thread(target=wait, args=(link,), kwargs={"names": topic, **asked})
        thread.start()
        link.abandon()
        thread.join(60)
    assert len(raised) == 1
