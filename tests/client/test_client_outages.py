"""A broker that is away or hangs: one caller waits for it, the others fail at once, and it is found when it is back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from client_support import Bank, pay, values_in

from brokers import BrokerProcess, running_broker
from eventually import eventually, eventually_equal
from fault_proxy import Fault, FaultProxy
from hanging_server import HangingServer, hanging_server
from servers import Server
from tallystick import AsyncClient, Client, errors
from tallystick.client.connection import brokers as brokers_of_a_client
from tallystick.client.connection.wire import Wire
from tallystick.local import free_port

pytestmark = pytest.mark.fault

MANY = 5
BACKLOG = 250
MODES = ["check-back", "consumer-dedup"]


@pytest.fixture
def hanging() -> Iterator[HangingServer]:
    with hanging_server() as server:
        yield server


@contextlib.contextmanager
def stopped(broker: BrokerProcess) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def fails(ts: Client, bank: Bank, topic: str, mode: str = "check-back") -> errors.BrokerUnavailable:
    with pytest.raises(errors.BrokerUnavailable) as failed:
        pay(ts, bank, topic, 0, mode=mode)
    return failed.value


async def block(ts: AsyncClient, bank: Bank, topic: str) -> None:
    with bank.connection() as connection:
        async with ts.transaction(connection) as tx:
            tx.send(topic, 1)


def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("url", [nowhere, lambda: "http://no-such-broker.invalid:7440"], ids=["refused", "no name"])
@pytest.mark.parametrize("mode", MODES)
def test_a_broker_that_cannot_be_reached_fails_blocks_within_a_second(
    bank: Bank, topic: str, group: str, url: Callable[[], str], mode: str
) -> None:
    with Client(url(), group=group, timeout=30, database=bank.open) as ts:
        assert seconds_of(lambda: fails(ts, bank, topic, mode)) < 15
        assert seconds_of(lambda: [fails(ts, bank, topic, mode) for _ in range(MANY)]) < 15
        failure = fails(ts, bank, topic, mode)
        assert isinstance(failure, errors.BrokerUnreachable)
        assert "is unavailable since 20" in failure.detail
        assert "it has not acted" in failure.detail
        assert ts.stats.circuits_opened == 1
        (since,) = ts.stats.unavailable_since.values()
        assert 0 <= time.time() - since < 60
    assert bank.notes() == []


def test_a_resolver_that_does_not_return_is_waited_for_no_longer_than_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ends.wait(250) and [])
    try:
        began = time.monotonic()
        with pytest.raises(errors.BrokerUnreachable, match="was not resolved within"):
            Wire("http://silent-dns.example:7440").send(b"", 1.0)
        assert time.monotonic() - began < 60
    finally:
        ends.set()


async def test_tasks_do_not_wait_for_a_broker_that_cannot_be_reached(bank: Bank, topic: str, group: str) -> None:
    began = time.monotonic()
    async with AsyncClient(nowhere(), group=group, timeout=30, database=bank.open) as ts:
        for _ in range(MANY):
            with pytest.raises(errors.BrokerUnreachable):
                await block(ts, bank, topic)
        results = await asyncio.gather(*(ts.send(topic, number) for number in range(50)), return_exceptions=True)
        assert {type(result) for result in results} == {errors.BrokerUnreachable}
    assert time.monotonic() - began < 20


def test_a_hanging_broker_costs_one_timeout_from_the_first_block_on(
    bank: Bank, topic: str, group: str, hanging: HangingServer
) -> None:
    with Client(hanging.url, group=group, timeout=3, database=bank.open) as ts:
        assert seconds_of(lambda: fails(ts, bank, topic)) < 6
        asked = hanging.requests("/v1/batch")
        assert seconds_of(lambda: [fails(ts, bank, topic) for _ in range(30)]) < 15
        assert hanging.requests("/v1/batch") == asked
        assert ts.stats.failed_at_once >= 30
    assert bank.notes() == []


def test_threads_that_wait_for_a_hanging_broker_are_freed_together(bank: Bank, topic: str, group: str) -> None:
    """Those that came later need not wait for the end of their own time."""
    with running_broker() as broker, Client(broker.url, group=group, timeout=6, database=bank.open) as ts:
        pay(ts, bank, topic, 0)
        found: list[tuple[float, errors.BrokerUnavailable]] = []

        def one() -> None:
            began = time.monotonic()
            failure = fails(ts, bank, topic)
            found.append((time.monotonic() - began, failure))

        with stopped(broker):
            threads = [threading.Thread(target=one) for _ in range(8)]
            for thread in threads:
                thread.start()
                time.sleep(0.3)
            for thread in threads:
                thread.join()
            assert max(seconds for seconds, _ in found) < 12
            assert seconds_of(lambda: [fails(ts, bank, topic) for _ in range(20)]) < 12
            # What was sent may have acted; what was not, has not.
            assert {type(failure) for _, failure in found} >= {errors.BrokerUnavailable}
            assert isinstance(fails(ts, bank, topic), errors.BrokerUnreachable)
        eventually(lambda: pay(ts, bank, topic, 1), seconds=60, ignoring=(errors.BrokerUnavailable,))
        eventually(lambda: ts.stats.unavailable_since == {})
        eventually(lambda: set(values_in(broker.url, topic)) >= {0, 1})


async def test_tasks_come_back_with_a_broker_that_was_stopped(topic: str) -> None:
    with running_broker() as broker:
        async with AsyncClient(broker.url, timeout=2) as ts:
            await ts.send(topic, 0)
            with stopped(broker):
                results = await asyncio.gather(*(ts.send(topic, 7) for _ in range(9)), return_exceptions=True)
                assert {type(result) for result in results} == {errors.BrokerUnavailable}
                began = time.monotonic()
                for _ in range(20):
                    with pytest.raises(errors.BrokerUnreachable, match="it has not acted"):
                        await ts.send(topic, 8)
                assert time.monotonic() - began < 15
            deadline = time.monotonic() + 60
            while True:
                with contextlib.suppress(errors.BrokerUnavailable):
                    await ts.send(topic, 1)
                    break
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            assert ts.stats.unavailable_since == {}
        assert 8 not in values_in(broker.url, topic)


def test_blocks_work_again_after_a_restart(bank: Bank, topic: str, group: str) -> None:
    with running_broker() as broker, Client(broker.url, group=group, timeout=30, database=bank.open) as ts:
        pay(ts, bank, topic, 0)
        broker.kill()
        assert seconds_of(lambda: fails(ts, bank, topic)) < 15
        broker.restart()
        eventually(lambda: pay(ts, bank, topic, 1), seconds=60, ignoring=(errors.BrokerUnavailable,))
        eventually_equal(lambda: sorted(values_in(broker.url, topic)), [0, 1])
        assert ts.stats.circuits_opened == 1


def test_the_commit_of_an_ended_block_is_retried_while_the_circuit_is_open(bank: Bank, topic: str, group: str) -> None:
    with (
        running_broker(check_after="1h") as broker,
        Client(broker.url, group=group, timeout=60, database=bank.open) as ts,
    ):
        pay(ts, bank, topic, 0)
        with bank.connection() as connection, ts.transaction(connection, prepare="early") as tx:
            tx.send(topic, 1)
            tx.prepare()
            broker.kill()
        fails(ts, bank, topic)
        assert ts.stats.circuits_opened == 1
        broker.restart()
        eventually_equal(lambda: sorted(values_in(broker.url, topic)), [0, 1])
        assert ts.stats.commits_left_to_check == 0


def test_with_two_brokers_one_may_hang(bank: Bank, topic: str, group: str) -> None:
    with (
        running_broker() as one,
        running_broker() as other,
        Client([one.url, other.url], group=group, timeout=4, database=bank.open) as ts,
    ):
        for number in range(4):
            pay(ts, bank, topic, number)
        assert ts._core.latest is not None
        preferred = ts._core.latest.brokers.for_new()[0].address
        with stopped(one if one.url == preferred else other):
            assert seconds_of(lambda: pay(ts, bank, topic, 4)) < 15
            assert seconds_of(lambda: [pay(ts, bank, topic, number) for number in range(5, 15)]) < 15
            assert seconds_of(lambda: ts.send(topic, 15)) < 15
    assert len(bank.notes()) == 15


def test_a_slow_broker_is_not_taken_for_one_that_hangs(bank: Bank, topic: str, group: str) -> None:
    with running_broker() as broker:
        proxy = FaultProxy(broker.port, lambda request: Fault("delay", 0.5))
        try:
            with Client(proxy.url, group=group, timeout=20, database=bank.open) as ts:
                threads = [
                    threading.Thread(target=pay, args=(ts, bank, topic, number), kwargs={"wait": number % 2 == 0})
                    for number in range(6)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                eventually_equal(lambda: len(bank.notes()), 6)
                assert ts.stats.circuits_opened == 0
                eventually_equal(lambda: sorted(values_in(broker.url, topic)), list(range(6)))
        finally:
            proxy.close()


def test_blocks_do_not_wait_behind_outbox_rows_that_are_retried(bank: Bank, topic: str, group: str) -> None:
    """More rows than one request takes wait for the broker. A block that is let through is not sent with the first."""
    with Client(nowhere(), group=group, timeout=60, database=bank.open) as ts:
        with bank.connection() as connection:
            for number in range(BACKLOG):
                with ts.transaction(connection, mode="outbox") as tx:
                    tx.send(topic, number)
        eventually(lambda: ts.stats.unavailable_since != {})
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert seconds_of(lambda: fails(ts, bank, topic)) < 15
            assert seconds_of(lambda: pay(ts, bank, topic, 0, mode="outbox")) < 15
        ts.close(0)


async def test_tasks_do_not_wait_behind_operations_that_are_retried(bank: Bank, topic: str, group: str) -> None:
    async with AsyncClient(nowhere(), group=group, timeout=60, database=bank.open) as ts:
        with bank.connection() as connection:
            for number in range(BACKLOG):
                async with ts.transaction(connection, mode="outbox") as tx:
                    tx.send(topic, number)
        while not ts.stats.unavailable_since:
            await asyncio.sleep(0.02)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            began = time.monotonic()
            with pytest.raises(errors.BrokerUnreachable):
                await block(ts, bank, topic)
            with pytest.raises(errors.BrokerUnreachable):
                await ts.send(topic, 1)
            assert time.monotonic() - began < 15
            await asyncio.sleep(0.06)  # a caller is let through
        await ts.close(0)


def test_questions_fail_at_once_while_a_broker_hangs(
    bank: Bank, topic: str, group: str, hanging: HangingServer
) -> None:
    with Client(hanging.url, group=group, timeout=4, database=bank.open) as ts:
        fails(ts, bank, topic)
        gid = ts.new_gid()
        asked = len(hanging.heads)
        questions: list[Callable[[], object]] = [
            lambda: ts.outcome(gid),
            lambda: ts.topics(),
            lambda: ts.fetch(topic, 0, 0),
            lambda: ts.receive(topic, group, wait=1),
            lambda: ts.receive(topic, group, wait=0),
        ]
        for _ in range(5):
            for question in questions:
                with pytest.raises(errors.BrokerUnreachable, match="is unavailable since 20"):
                    question()
        assert all("/v1/info" in head or "/v1/cluster" in head for head in hanging.heads[asked:])


def test_questions_are_answered_again_after_a_hang(topic: str) -> None:
    """No operation has to come first."""
    with running_broker() as broker, Client(broker.url, timeout=2) as ts:
        ts.send(topic, 1)
        with stopped(broker):
            for _ in range(2):
                with pytest.raises(errors.BrokerUnavailable):
                    ts.send(topic, 2)
            with pytest.raises(errors.BrokerUnreachable, match="is unavailable since 20"):
                ts.topics()
        eventually(lambda: ts.topics(), seconds=60, ignoring=(errors.BrokerUnavailable,))


def test_a_question_shares_its_timeout_with_the_first_look(topic: str, group: str, hanging: HangingServer) -> None:
    with Client(hanging.url, group=group, timeout=0.5) as ts:
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(errors.BrokerUnavailable):
                ts.receive(topic, group)
            assert time.monotonic() - began < 4


def test_a_block_without_messages_waits_for_no_broker(
    monkeypatch: pytest.MonkeyPatch, bank: Bank, hanging: HangingServer
) -> None:
    monkeypatch.setattr(brokers_of_a_client, "FIRST_LOOK_SECONDS", 30.0)
    began = time.monotonic()
    with Client(hanging.url, group="g", timeout=30, database=bank.open) as ts:
        with bank.connection() as connection, ts.transaction(connection):
            bank.note(connection, "paid")
        assert time.monotonic() - began < 10
        ts.close(0)
    assert bank.notes() == ["paid"]


def test_the_first_look_counts_as_part_of_the_deadline(
    monkeypatch: pytest.MonkeyPatch, bank: Bank, topic: str, group: str, hanging: HangingServer
) -> None:
    monkeypatch.setattr(brokers_of_a_client, "FIRST_LOOK_SECONDS", 30.0)
    began = time.monotonic()
    with Client(hanging.url, group=group, timeout=5, database=bank.open) as ts:
        fails(ts, bank, topic)
        assert time.monotonic() - began < 9
        ts.close(0)


def test_the_first_outbox_block_does_not_wait_for_a_broker_that_hangs(
    monkeypatch: pytest.MonkeyPatch, bank: Bank, topic: str, group: str, hanging: HangingServer
) -> None:
    monkeypatch.setattr(brokers_of_a_client, "FIRST_LOOK_SECONDS", 30.0)
    with Client(hanging.url, group=group, timeout=30) as ts:
        with bank.connection() as connection:
            began = time.monotonic()
            with ts.transaction(connection, mode="outbox", wait=False) as tx:
                tx.send(topic, 1)
        assert time.monotonic() - began < 10
        ts.close(0)


@pytest.mark.postgresql
def test_no_transaction_is_held_open_while_the_broker_is_away(postgres: Server, topic: str, group: str) -> None:
    bank = Bank("postgresql", postgres)
    with running_broker() as broker, Client(broker.url, group=group, timeout=60, database=bank.open) as ts:
        pay(ts, bank, topic, 0)
        broker.kill()
        ends = threading.Event()

        def blocks() -> None:
            while not ends.is_set():
                fails(ts, bank, topic)

        threads = [threading.Thread(target=blocks) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: ts.stats.failed_at_once > 40, "blocks that fail")
            (longest,) = bank.rows(
                "select coalesce(max(extract(epoch from now() - xact_start)), 0)::float from pg_stat_activity "
                "where datname = current_database() and state = 'idle in transaction'"
            )[0]
            assert longest < 20
        finally:
            ends.set()
            for thread in threads:
                thread.join()
