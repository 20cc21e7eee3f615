"""Hosts that answer some calls while others hang or fail: healthy calls go on, and failing ones keep their backoff."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from aiohttp import web
from called_services import calls_of, done, grpc_service, send
from inner_broker import Inside, inside, rounds
from web_sites import Site, site

from eventually import eventually_async
from tallystick.broker.calls.deliverer import CallSettings
from tallystick.core.calls import CallPolicy, HostView
from tallystick.core.clock import SystemClock

MINUTE = CallPolicy(retry_ms=60_000)


class Partial:
    """A service that hangs on /hang, answers 503 on /busy and answers everything else at once."""

    def __init__(self, url: str, protocol: Any) -> None:
        self.base, self.protocol = url, protocol
        self.tries: Counter[str] = Counter()

    def url(self, path: str) -> str:
        return f"{self.base}/busi.Busi/{path}"

    async def send(self, broker: Inside, gid: str, path: str, options: CallPolicy | None = None, **rest: Any) -> None:
        await send(broker, gid, self.url(path), protocol=self.protocol, options=options, **rest)


@contextlib.asynccontextmanager
async def partial(protocol: str = "http") -> AsyncIterator[Partial]:
    if protocol == "grpc":

        async def handle_grpc(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
            gid = str(dict(context.invocation_metadata() or ())["dtm-gid"])
            made.tries[gid] += 1
            if gid.startswith("hang"):
                await asyncio.sleep(600)
            if gid.startswith("busy"):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
            return b""

        async with grpc_service(handle_grpc) as service:
            made = Partial(service.url("").rstrip("/"), protocol)
            yield made
        return

    async def handle(request: web.Request) -> web.Response:
        made.tries[request.query["gid"]] += 1
        if request.path.endswith("/hang"):
            await asyncio.sleep(600)
        return web.Response(status=503 if request.path.endswith("/busy") else 200)

    async with site(handle) as there:
        made = Partial(there.url, protocol)
        yield made


def host(broker: Inside) -> HostView:
    (found,) = broker.door.call_hosts()
    return found


async def opens(broker: Inside) -> None:
    async def look() -> bool:
        return host(broker).open

    await eventually_async(look, "the circuit is open")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("path", ["hang", "busy"])
async def test_calls_that_fail_on_a_host_that_answers_others_keep_their_backoff(
    path: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    rest = {"call_breaker_failures": 3, "call_probe": "100ms", "call_probe_cap": "100ms"}
    async with inside(clock=SystemClock(), **rest) as broker, partial(protocol) as there:
        for number in range(6):
            await there.send(broker, f"{path}{number}", path, MINUTE, timeout_ms=500)
        for number in range(20):
            await there.send(broker, f"ok{number}", "ok")
            await done(broker, f"ok{number}")
            await asyncio.sleep(0.1)
        for number in range(6):
            (call,) = (await calls_of(broker, f"{path}{number}")).calls
            # Once more whenever the circuit opened before the host had answered anything else; not once a probe.
            assert 1 <= call.attempts <= 5
            assert there.tries[f"{path}{number}"] <= 3
            assert call.next_at > broker.broker.clock.now_ms() + 20_000
        assert not host(broker).open
    assert sum("does not answer" in record.message for record in caplog.records) <= 1


async def test_the_wait_of_the_transaction_decides_whether_a_probe_is_a_try() -> None:
    async with inside(call_breaker_failures=1, call_probe="1s", call_probe_cap="1s") as broker, partial() as there:
        await there.send(broker, "busy", "busy", MINUTE)
        await opens(broker)
        for _ in range(30):
            broker.clock.advance(1_000)
            await rounds(1)
        assert there.tries["busy"] > 5
        assert (await calls_of(broker, "busy")).calls[0].attempts == 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("hanging", [8, 40])
async def test_slow_calls_do_not_keep_others_from_their_host(hanging: int, protocol: str) -> None:
    async with inside(clock=SystemClock()) as broker, partial(protocol) as there:
        for number in range(hanging):
            await there.send(broker, f"hang{number}", "hang", timeout_ms=300_000)
        for number in range(20):
            await there.send(broker, f"ok{number}", "ok")
        await done(broker, *(f"ok{number}" for number in range(20)))
        assert host(broker).in_flight == hanging
        hurry_up(broker)


def hurry_up(broker: Inside) -> None:
    """Calls that hang must not hold up the end of the test."""
    broker.broker.calls._settings = CallSettings(drain_ms=10)


async def test_failures_before_do_not_keep_slow_calls_from_their_host() -> None:
    """They make the window small, which slow calls then fill."""
    async with inside(clock=SystemClock(), call_breaker_failures=20) as broker, partial() as there:
        for number in range(4):
            await there.send(broker, f"busy{number}", "busy", MINUTE)
        for number in range(3):
            await there.send(broker, f"hang{number}", "hang", timeout_ms=300_000)
        await there.send(broker, "ok", "ok")
        await done(broker, "ok")
        hurry_up(broker)


async def test_concurrent_slow_calls_are_under_way_together() -> None:
    async def wait(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    release = asyncio.Event()
    async with inside(clock=SystemClock(), calls_per_host=24) as broker, site(wait) as there:
        await send(broker, "t", *[there.url] * 30, options=CallPolicy(concurrent=True))
        await at_once(there, 24)
        release.set()
        await done(broker, "t")
        assert there.most_at_once == 24


async def at_once(there: Site, count: int) -> None:
    async def look() -> bool:
        return there.at_once == count

    await eventually_async(look, f"{count} calls are under way")


async def test_hosts_that_hang_leave_half_of_all_capacity_to_others() -> None:
    async with inside(clock=SystemClock(), calls_in_flight=40) as broker, partial() as there:
        for number in range(40):
            await there.send(broker, f"hang{number}", "hang", timeout_ms=300_000)

        async def look() -> bool:
            return host(broker).in_flight == 20

        await eventually_async(look, "20 calls are under way")
        await rounds(8)
        assert host(broker).in_flight == 20
        async with partial() as alive:
            for number in range(20):
                await alive.send(broker, f"ok{number}", "ok")
            await done(broker, *(f"ok{number}" for number in range(20)))
        hurry_up(broker)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("hanging", [30, pytest.param(500, marks=pytest.mark.full)])
async def test_probes_find_the_calls_that_are_answered(hanging: int, protocol: str) -> None:
    """Behind any number of calls that hang, at one URL, and whose time-outs are longer than the test."""
    async with inside(call_breaker_failures=3) as broker, partial(protocol) as there:
        for number in range(3):
            await there.send(broker, f"busy{number}", "busy", MINUTE)
        await opens(broker)
        for number in range(hanging):
            await there.send(broker, f"hang{number}", "hang", MINUTE, timeout_ms=300_000)
        await there.send(broker, "ok", "ok")
        probes = 0
        while not there.tries["ok"]:
            broker.clock.advance(5_000)
            await rounds(3)
            probes += 1
            assert probes < 10
        await done(broker, "ok")
        hurry_up(broker)
