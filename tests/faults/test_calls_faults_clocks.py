"""Clocks that jump under calls: tries come early or late, no call is lost, doubled or made out of order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from call_history import body_of
from call_service import Service, running

from eventually import eventually_async
from tallystick.broker.broker import Broker
from tallystick.broker.calls.deliverer import LOOK_AGAIN_MS
from tallystick.broker.config import load_config
from tallystick.core.calls import CallsView, OutgoingCall
from tallystick.core.clock import ManualClock
from tallystick.core.ops import Check, Commit, Prepare, Rollback, Send

pytestmark = pytest.mark.fault

HOUR = 3_600_000
JUMPS = [HOUR, -HOUR, 24 * HOUR, -24 * HOUR]


@pytest.fixture
def service() -> Iterator[Service]:
    with running(Service()) as made:
        yield made


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    flags = {"data_dir": str(tmp_path), "min_free_bytes": 0, "call_retry_first": "50ms", "call_retry_cap": "100ms"}
    flags |= {"call_probe": "50ms", "call_probe_cap": "100ms", "call_timeout": "1s"}
    made = Broker(load_config(flags=flags, environ={}), clock=ManualClock())
    ticking = asyncio.create_task(tick(made))
    yield made
    ticking.cancel()
    await made.close()


async def tick(broker: Broker) -> None:
    """Time passes between the jumps."""
    while True:
        await asyncio.sleep(0.01)
        pass_by(broker, 10)


def pass_by(broker: Broker, ms: int) -> None:
    assert isinstance(broker.clock, ManualClock)
    broker.clock.advance(ms)


def jump(broker: Broker, ms: int) -> None:
    assert isinstance(broker.clock, ManualClock)
    broker.clock.step(ms)


def outgoing(service: Service, gid: str, **rest: Any) -> list[OutgoingCall]:
    return [OutgoingCall(f"{service.url}/{one}", body_of(gid, one), **rest) for one in ("01", "02")]


async def send(broker: Broker, service: Service, gid: str, **rest: Any) -> None:
    (result,) = await broker.door().batch([Send([], gid, calls=outgoing(service, gid, **rest))], 100)
    assert result is None or not result.error, result


async def becomes(broker: Broker, gid: str, state: str) -> CallsView:
    async def look() -> CallsView | None:
        view = await broker.door().calls(gid)
        return view if view.state == state else None

    return await eventually_async(look, f"{gid} is {state}")


@pytest.mark.parametrize("ms", JUMPS)
async def test_after_a_jump_new_calls_are_made_as_before(broker: Broker, service: Service, ms: int) -> None:
    await send(broker, service, "before")
    await becomes(broker, "before", "done")
    jump(broker, ms)
    await send(broker, service, "after")
    await becomes(broker, "after", "done")
    assert service.of("before") == service.of("after") == [("01", 200), ("02", 200)]


@pytest.mark.parametrize("ms", JUMPS)
async def test_a_call_that_is_out_while_the_clock_jumps_is_made_once(broker: Broker, service: Service, ms: int) -> None:
    """A lease that seems to be over is not: its call is still out."""

    def answer(_: Any) -> int:
        jump(broker, ms)
        return 200

    service.answer = answer
    await send(broker, service, "t")
    await becomes(broker, "t", "done")
    assert service.of("t") == [("01", 200), ("02", 200)]


@pytest.mark.parametrize("ms", JUMPS)
async def test_a_jump_drops_nothing_and_calls_nothing_that_has_no_outcome(
    broker: Broker, service: Service, ms: int
) -> None:
    check = Check(via="url", target=service.check_url, after_ms=HOUR, max_checks=1_000)
    for gid in ("open", "undone"):
        await broker.door().batch([Prepare(gid, "shop", [], check, calls=outgoing(service, gid))], 100)
    await broker.door().batch([Rollback("undone")], 100)
    jump(broker, ms)
    await asyncio.sleep(0.5)
    assert service.arrivals == []
    await broker.door().batch([Commit("open")], 100)
    await becomes(broker, "open", "done")
    assert service.of("open") == [("01", 200), ("02", 200)]
    assert service.of("undone") == []


async def test_a_jump_forward_makes_tries_early(broker: Broker, service: Service) -> None:
    await send(broker, service, "delayed", delay_ms=HOUR)
    await asyncio.sleep(0.3)
    assert service.arrivals == []
    jump(broker, HOUR)
    pass_by(broker, LOOK_AGAIN_MS)
    await becomes(broker, "delayed", "done")


@pytest.mark.parametrize("ms", [-HOUR, -24 * HOUR])
async def test_a_host_that_was_down_when_the_clock_went_back_is_found_when_it_is_back(
    broker: Broker, service: Service, ms: int
) -> None:
    """Whether a host is there does not depend on what time it is."""
    service.answer = lambda _: 503
    await send(broker, service, "before")
    async with asyncio.timeout(20):
        while not any(host.open for host in broker.door().call_hosts()):
            await asyncio.sleep(0.02)
    jump(broker, ms)
    service.answer = lambda _: 200
    await send(broker, service, "after")
    await becomes(broker, "after", "done")
    assert service.of("after") == [("01", 200), ("02", 200)]


async def test_jumps_back_and_forth_while_calls_are_made(broker: Broker, service: Service) -> None:
    for number in range(40):
        await send(broker, service, f"t{number}")
        jump(broker, JUMPS[number % 4] * (1 if number % 8 < 4 else 2))
        await asyncio.sleep(0.01)
    jump(broker, 10 * 24 * HOUR)
    for number in range(40):
        await becomes(broker, f"t{number}", "done")
    times = Counter((one.gid, one.branch) for one in service.arrivals)
    assert set(times) == {(f"t{number}", branch) for number in range(40) for branch in ("01", "02")}
    assert set(times.values()) == {1}
    assert all(service.of(f"t{number}") == [("01", 200), ("02", 200)] for number in range(40))
