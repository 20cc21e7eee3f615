"""Hosts that are down, hang, answer half the time, or come back: no one delays another, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from aiohttp import web
from called_services import OK, calls_of, done, lean, none_waiting, send, send_many, tried
from inner_broker import Inside, inside, rounds
from web_sites import closed_port, rough_site, silence, site

from eventually import eventually_async
from tallystick.broker.calls.deliverer import CallSettings
from tallystick.broker.outbound.allow_list import AllowedUrls
from tallystick.core.calls import HostView, OutgoingCall
from tallystick.core.clock import SystemClock
from tallystick.core.ops import Send

BAD_GATEWAY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"


def host(broker: Inside, url: str) -> HostView:
    (found,) = (view for view in broker.door.call_hosts() if url.startswith(view.name))
    return found


async def given_up(broker: Inside, url: str) -> None:
    async def look() -> bool:
        return any(url.startswith(view.name) and view.open for view in broker.door.call_hosts())

    await eventually_async(look, f"{url} is given up")


async def test_a_dead_host_is_given_up_and_only_probed() -> None:
    async with inside(call_breaker_failures=3) as broker:
        url = f"http://127.0.0.1:{closed_port()}"
        await send_many(broker, url, 300)
        await given_up(broker, url)
        await rounds()
        made = broker.metric("calls_made_total", protocol="http", outcome="unreachable")
        assert 3 <= made <= 16  # what was out when it was given up, and nothing else
        assert broker.metric("call_hosts_open") == 1
        for probes in range(1, 4):
            broker.clock.advance(5_000)
            await rounds(3)
            assert broker.metric("calls_made_total", protocol="http", outcome="unreachable") == made + probes
        await none_leased(broker)


async def none_leased(broker: Inside) -> None:
    async def look() -> bool:
        return not broker.broker.calls._held

    await eventually_async(look, "nothing is held")


async def test_a_dead_host_delays_no_other() -> None:
    async with inside(calls_in_flight=64) as broker, lean() as alive:
        dead = f"http://127.0.0.1:{closed_port()}"
        await send_many(broker, dead, 1_000, "dead")
        await given_up(broker, dead)
        gids = await send_many(broker, alive.url, 1_000, "alive")
        await done(broker, *gids)
        assert len(alive.urls) == 1_000


@pytest.mark.parametrize("hanging", [1, 20])
async def test_hosts_that_hang_delay_no_other(hanging: int) -> None:
    """They take connections and never answer; all together they hold less than what all hosts share."""
    many = [f"h{number}.test" for number in range(1, hanging)]
    async with inside(calls_in_flight=300, call_timeout="60s") as broker, lean() as alive, rough_site(silence) as url:
        # One service under many names: to the broker these are as many hosts.
        port = int(url.rpartition(":")[2])
        broker.broker.allowed._patterns.extend(AllowedUrls([f"http://*.test:{port}"])._patterns)
        broker.broker.allowed._literal_hosts |= set(many)
        broker.broker._outbound._resolver._look_up = lambda _: ["127.0.0.1"]
        for name in ("127.0.0.1", *many):
            await send_many(broker, f"http://{name}:{port}", 100, name)
        await rounds()
        gids = await send_many(broker, alive.url, 1_000, "alive")
        await done(broker, *gids)
        stuck = [view for view in broker.door.call_hosts() if view.name != alive.url]
        assert [view.in_flight for view in stuck] == [8] * hanging
        broker.broker.calls._settings = CallSettings(drain_ms=10)


async def test_a_host_that_returns_gets_everything_that_waited() -> None:
    async with inside(call_breaker_failures=3) as broker, lean() as there:
        await there.stop()
        gids = await send_many(broker, there.url, 500)
        await given_up(broker, there.url)
        await rounds()
        await there.start()
        broker.clock.advance(1_000)
        # The clock stands still from here on: calls that were tried before are made early, or they would wait.
        await done(broker, *gids)
        assert len(there.urls) == len(set(there.urls)) == 500
        assert not host(broker, there.url).open


async def test_after_a_long_outage_nobody_waits_for_the_end_of_a_long_backoff() -> None:
    async with inside(call_breaker_failures=2) as broker, lean() as there:
        await there.stop()
        await send(broker, "t", there.url)
        for attempts in range(1, 9):
            call = await tried(broker, "t", attempts)
            broker.clock.advance(600_000)
        await given_up(broker, there.url)
        call = await tried(broker, "t", 9)
        assert call.next_at - broker.clock.now_ms() > 100_000
        await there.start()
        broker.clock.advance(5_000)  # the longest time between two probes
        await done(broker, "t")


async def test_an_outage_does_not_use_up_a_calls_tries() -> None:
    async with inside(call_breaker_failures=2, call_probe="1s", call_probe_cap="1s") as broker, lean() as there:
        await there.stop()
        await send(broker, "t", there.url)
        for _ in range(60):
            broker.clock.advance(1_000)
            await asyncio.sleep(0.11)
        # A minute with a probe each second; by itself it would be tried after 1, 3, 7, 15, 31 and 63 seconds.
        made = broker.metric("calls_made_total", protocol="http", outcome="unreachable")
        assert made > 20
        assert (await calls_of(broker, "t")).calls[0].attempts <= 10


@pytest.mark.full
async def test_ten_thousand_calls_are_delivered_when_the_host_returns_and_not_each_at_its_time() -> None:
    async with inside(clock=SystemClock(), call_retry_first="1h", call_retry_cap="1h") as broker, lean() as there:
        await there.stop()
        dead = f"http://127.0.0.1:{closed_port()}"
        await send_many(broker, dead, 1_000, "dead")
        await send_many(broker, there.url, 10_000)
        await given_up(broker, there.url)
        await asyncio.sleep(2)
        await there.start()

        async def all_of_them() -> bool:
            return len(there.urls) >= 10_000

        await eventually_async(all_of_them, "10,000 calls", 100)
        assert len(set(there.urls)) == len(there.urls) == 10_000


async def test_calls_that_fail_again_and_again_do_not_turn_in_a_circle_when_their_host_is_back() -> None:
    tries: Counter[str] = Counter()

    async def handler(request: web.Request) -> web.Response:
        gid = request.query["gid"]
        tries[gid] += 1
        return web.Response(status=503 if gid.startswith("zbad") else 200)

    async with inside(call_breaker_failures=300, calls_per_host=4) as broker, lean() as there:
        await there.stop()
        good = await send_many(broker, there.url, 300, "good")
        bad = await send_many(broker, there.url, 20, "zbad")
        await given_up(broker, there.url)
        good += await send_many(broker, there.url, 10, "a-new-one")  # the probe is one of these
        async with site(handler, port=there.port):
            broker.clock.advance(800)
            await eventually_probed(broker, there.url)
            await done(broker, *good)
            await rounds(5)
            # Once early, and as the one that tells that all are through. It would take 300 in a row to give it up.
            assert 1 <= max(tries[gid] for gid in bad) <= 3
        there.port = 0
        await there.start()


async def eventually_probed(broker: Inside, url: str) -> None:
    async def look() -> bool:
        broker.clock.advance(10)
        return not host(broker, url).open

    await eventually_async(look, f"{url} is back")


async def test_a_gateway_that_says_503_is_a_dead_host_and_any_other_answer_is_none() -> None:
    async with inside(call_breaker_failures=3) as broker, lean() as there:
        there.answer = BAD_GATEWAY
        await send_many(broker, there.url, 20)
        await given_up(broker, there.url)
        there.answer = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
        broker.clock.advance(1_000)

        async def closed() -> bool:
            return not host(broker, there.url).open

        await eventually_async(closed, "a 500 is an answer")


async def test_answers_in_between_keep_a_host_that_fails_often() -> None:
    counted = 0

    async def handler(_: web.Request) -> web.Response:
        nonlocal counted
        counted += 1
        return web.Response(status=503 if counted % 2 else 200)

    async with inside(call_breaker_failures=3, calls_per_host=1) as broker, site(handler) as there:
        await send_many(broker, there.url, 40)

        async def all_tried() -> bool:
            return counted >= 40

        await eventually_async(all_tried, "each was tried")
        assert not host(broker, there.url).open


async def test_a_service_that_breaks_every_connection_is_given_up_and_comes_back() -> None:
    async with inside(call_breaker_failures=3) as broker, lean() as there:
        there.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok"

        async def break_off() -> None:
            while True:
                await asyncio.sleep(0.01)
                for transport in list(there.open):
                    transport.close()

        breaking = asyncio.create_task(break_off())
        gids = await send_many(broker, there.url, 20)
        await given_up(broker, there.url)
        breaking.cancel()
        await asyncio.gather(breaking, return_exceptions=True)
        there.answer = OK
        broker.clock.advance(1_000)
        await done(broker, *gids)


async def test_a_probe_that_cannot_be_sent_says_nothing_about_the_host() -> None:
    async with inside(call_breaker_failures=1) as broker, lean() as there:
        await there.stop()
        await send(broker, "plain", there.url)
        await given_up(broker, there.url)
        # Not through the door, which refuses it: such a call is one that an earlier version has stored.
        odd = Send([], "odd", [OutgoingCall(f"{there.url}/?method=x", b"[]", protocol="json-rpc")])
        await broker.broker._writer.submit([odd])
        await there.start()
        for _ in range(20):
            broker.clock.advance(2_000)
            await rounds(1)
        await done(broker, "plain")
        assert "JSON object" in (await calls_of(broker, "odd")).calls[0].last_error


async def test_hosts_are_listed_with_what_is_known_of_them() -> None:
    async with inside(call_breaker_failures=2) as broker, lean() as there:
        dead = f"http://127.0.0.1:{closed_port()}"
        await send_many(broker, dead, 5, "d")
        await send_many(broker, there.url, 5, "a")
        await given_up(broker, dead)
        await rounds()
        alive = host(broker, there.url)
        assert (alive.open, alive.failures, alive.in_flight) == (False, 0, 0)
        assert host(broker, dead).failures >= 2
        assert host(broker, dead).next_probe_at > broker.clock.now_ms()
        await none_waiting_of(broker, 5)


async def none_waiting_of(broker: Inside, left: int) -> None:
    async def look() -> bool:
        return (await broker.look(lambda store: store.counts())).calls_waiting == left

    await eventually_async(look, f"{left} calls wait")


async def test_many_hosts_are_served_at_once() -> None:
    services = []
    async with inside() as broker:
        for number in range(30):
            service = lean()
            services.append((service, await service.__aenter__()))
            await send_many(broker, services[-1][1].url, 20, f"h{number}-")
        await none_waiting(broker)
        assert [len(set(service.urls)) for _, service in services] == [20] * 30
        for context, _ in services:
            await context.__aexit__(None, None, None)
