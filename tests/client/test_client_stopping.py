"""stop(grace) and close(timeout) keep their limits, although a handler is stuck; and what they do inside a handler."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from client_support import Bank, values_in

import tallystick
from brokers import BrokerProcess
from eventually import eventually, eventually_equal
from tallystick import errors
from tallystick.client.client import SIGNAL_SECONDS
from tallystick.client.consumers import lanes
from tallystick.client.consumers.running import GRACE_SECONDS
from tallystick.client.runtime import CLOSE_SECONDS, FLUSH_SECONDS

LIMIT = 30.0
KUBERNETES_SECONDS = 30.0


@pytest.fixture(autouse=True)
def _rare_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that counts looks instead of time would take 100 s, far beyond the limit."""
    monkeypatch.setattr(lanes, "CLOSE_LOOK_SECONDS", 0.2)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def seconds_of(stop: Any) -> float:
    began = time.monotonic()
    stop()
    return time.monotonic() - began


@pytest.mark.parametrize("stuck", ["handler", "opener", "by offset"])
@pytest.mark.parametrize("way", ["stop", "close"])
def test_a_stuck_handler_does_not_hold_the_client_up(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, release: threading.Event, stuck: str, way: str
) -> None:
    at_work = threading.Event()

    def hang() -> None:
        at_work.set()
        release.wait(120)

    def opens() -> Any:
        hang()
        return bank.open()

    ts = tallystick.Client(broker.url, group=group)
    ts.send(topic, 1)
    options: dict[str, Any] = {
        "handler": {},
        "opener": {"exactly_once": opens},
        "by offset": {"exactly_once": bank.open, "by": "offset"},
    }[stuck]
    ts.subscribe(topic, **options)((lambda message: hang()) if not options else lambda message, connection: hang())
    ts.start()
    assert at_work.wait(60)
    assert seconds_of(lambda: ts.stop(grace=0.2) if way == "stop" else ts.close(timeout=0.2)) < LIMIT
    assert seconds_of(ts.close) < LIMIT
    release.set()


def test_what_waits_behind_a_stuck_handler_is_given_back(
    broker: BrokerProcess, topic: str, group: str, release: threading.Event
) -> None:
    begun: list[str] = []
    came: list[str] = []

    def hang(message: tallystick.Message) -> None:
        begun.append(message.text)
        release.wait(120)

    with tallystick.Client(broker.url, group=group) as ts, tallystick.Client(broker.url, group=group) as other:
        ts.subscribe(topic, invisible=300, concurrency=1)(hang)
        for number in range(5):
            ts.send(topic, number)
        ts.start()
        eventually(lambda: begun)
        ts.stop(grace=0.2)
        other.subscribe(topic)(lambda message: came.append(message.text))
        other.start()
        eventually_equal(lambda: sorted(came + begun), ["0", "1", "2", "3", "4"], 60)
        release.set()


@pytest.mark.parametrize("way", ["stop", "close"])
async def test_a_coroutine_that_refuses_to_be_cancelled_does_not_hold_the_client_up(
    broker: BrokerProcess, topic: str, group: str, way: str
) -> None:
    release, at_work = asyncio.Event(), asyncio.Event()
    ts = tallystick.AsyncClient(broker.url, group=group)

    @ts.subscribe(topic)
    async def handle(message: tallystick.Message) -> None:
        at_work.set()
        while not release.is_set():
            try:
                await asyncio.wait_for(release.wait(), 120)
            except asyncio.CancelledError:
                continue

    await ts.send(topic, 1)
    await ts.start()
    await asyncio.wait_for(at_work.wait(), 60)
    await asyncio.wait_for(ts.stop(0.2) if way == "stop" else ts.close(0.2), LIMIT)
    release.set()
    await asyncio.wait_for(ts.close(), LIMIT)


def test_a_handler_may_stop_its_own_client(broker: BrokerProcess, topic: str, group: str) -> None:
    took: list[float] = []
    with tallystick.Client(broker.url, group=group) as ts:

        @ts.subscribe(topic, invisible=2)
        def handle(message: tallystick.Message) -> None:
            took.append(seconds_of(lambda: ts.stop(grace=60)))

        ts.send(topic, 1)
        runs = threading.Thread(target=ts.run)
        runs.start()
        runs.join(90)
        assert not runs.is_alive()
    assert len(took) == 1
    assert took[0] < LIMIT
    with tallystick.Client(broker.url, group=group) as other:  # it was acknowledged: only the second one comes
        came: list[str] = []
        other.subscribe(topic)(lambda message: came.append(message.text))
        other.start()
        other.send(topic, 2)
        eventually_equal(lambda: came, ["2"])


async def test_a_coroutine_may_stop_its_own_client(broker: BrokerProcess, topic: str, group: str) -> None:
    took: list[float] = []
    async with tallystick.AsyncClient(broker.url, group=group) as ts:

        @ts.subscribe(topic)
        async def handle(message: tallystick.Message) -> None:
            began = time.monotonic()
            await ts.stop(grace=60)
            took.append(time.monotonic() - began)

        await ts.send(topic, 1)
        await asyncio.wait_for(ts.run(), 90)
    assert len(took) == 1
    assert took[0] < LIMIT


def test_a_handler_cannot_close_its_own_client(broker: BrokerProcess, topic: str, group: str) -> None:
    refused: list[str] = []
    with tallystick.Client(broker.url, group=group) as ts:

        @ts.subscribe(topic)
        def handle(message: tallystick.Message) -> None:
            try:
                ts.close()
            except errors.InvalidRequest as error:
                refused.append(str(error))

        ts.send(topic, 1)
        ts.start()
        eventually(lambda: refused)
        ts.send(topic, 2)  # the client is as it was
        eventually(lambda: len(refused) == 2)
    assert "Call stop() in the handler" in refused[0]
    assert values_in(broker.url, topic) == [1, 2]


async def test_a_coroutine_cannot_close_its_own_client(broker: BrokerProcess, topic: str, group: str) -> None:
    refused = asyncio.Event()
    async with tallystick.AsyncClient(broker.url, group=group) as ts:

        @ts.subscribe(topic)
        async def handle(message: tallystick.Message) -> None:
            with pytest.raises(errors.InvalidRequest, match="a handler cannot close its own client"):
                await ts.close()
            refused.set()

        await ts.send(topic, 1)
        await ts.start()
        await asyncio.wait_for(refused.wait(), 60)


def test_the_default_limits_fit_into_the_time_that_kubernetes_gives() -> None:
    """A service that is told to end by SIGTERM: run(), then close(), both with a handler or a broker that hangs."""
    stop = SIGNAL_SECONDS + GRACE_SECONDS + lanes.CLOSING_SECONDS
    close = CLOSE_SECONDS + lanes.CLOSING_SECONDS + 1.5 * FLUSH_SECONDS
    assert stop + close < KUBERNETES_SECONDS
