"""Calls through a broker: made when due, in order or at once, again when they failed, never again when answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from called_services import calls_of, done, lean, none_waiting, send, send_many, tried
from inner_broker import inside, rounds
from web_sites import answering, closed_port, rough_site, silence, site

from eventually import eventually_async
from tallystick.broker.calls.deliverer import CallSettings
from tallystick.core.calls import CallPolicy, OutgoingCall
from tallystick.core.errors import Busy, NotFound
from tallystick.core.ops import Check, Commit, Prepare, Rollback
from tallystick.store.protocol import ResumeCalls, StopCalls

SUCCESS = answering(200, {"dtm_result": "SUCCESS"})
DAY = 24 * 3600 * 1000


async def test_a_call_is_made_once_and_done() -> None:
    async with inside() as broker, site(SUCCESS) as there:
        await send(broker, "t", f"{there.url}/in")
        await done(broker, "t")
        await rounds()
        assert [str(request.rel_url) for request in there.requests] == [
            "/in?gid=t&trans_type=msg&branch_id=01&op=action"
        ]
        (call,) = (await calls_of(broker, "t")).calls
        assert (call.attempts, call.last_error, call.state) == (1, "", "done")
        assert broker.metric("calls_made_total", protocol="http", outcome="success") == 1
        assert broker.metric("call_seconds_count", protocol="http") == 1
        assert broker.metric("calls_in_flight") == broker.metric("call_hosts_open") == 0


async def test_nothing_is_called_before_the_transaction_commits_or_after_it_rolled_back() -> None:
    async with inside() as broker, site(SUCCESS) as there:
        for gid in ("yes", "no"):
            calls = [OutgoingCall(f"{there.url}/{gid}", b"{}")]
            await broker.do(Prepare(gid, "shop", [], Check(after_ms=DAY), None, calls))
        await rounds()
        assert there.requests == []
        await broker.do(Rollback("no"))
        await broker.do(Commit("yes"))
        await done(broker, "yes")
        await rounds()
        assert [request.path for request in there.requests] == ["/yes"]


async def test_calls_in_order_wait_for_the_one_before() -> None:
    async with inside() as broker, site(answering(500, b"oops")) as there:
        await send(broker, "t", *(f"{there.url}/{name}" for name in "abc"))
        call = await tried(broker, "t")
        assert call.last_error == "status 500: oops"
        await rounds()
        assert [request.path for request in there.requests] == ["/a"]
        there.handler = SUCCESS
        broker.clock.advance(1_000)
        await done(broker, "t")
        assert [request.path for request in there.requests] == ["/a", "/a", "/b", "/c"]


async def test_concurrent_calls_are_out_together() -> None:
    free = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await free.wait()
        return web.Response()

    async with inside() as broker, site(wait) as there:
        await send(broker, "t", *(f"{there.url}/{name}" for name in "abc"), options=CallPolicy(concurrent=True))

        async def three() -> bool:
            return there.at_once == 3

        await eventually_async(three, "three calls at once")
        assert broker.metric("calls_in_flight") == 3
        free.set()
        await done(broker, "t")


@pytest.mark.parametrize(
    ("status", "outcome", "waits"),
    [
        (409, "failure", [1_000, 2_000, 4_000]),
        (500, "error", [1_000, 2_000, 4_000]),
        (425, "ongoing", [1_000, 1_000, 1_000]),
    ],
)
async def test_what_did_not_succeed_is_made_again_in_time(status: int, outcome: str, waits: list[int]) -> None:
    async with inside() as broker, site(answering(status, b"no")) as there:
        await send(broker, "t", there.url)
        for attempts, wait in enumerate(waits, 1):
            call = await tried(broker, "t", attempts)
            assert wait * 0.8 - 1 <= call.next_at - broker.clock.now_ms() <= wait
            assert call.last_error == f"status {status}: no"
            await rounds(2)
            assert len(there.requests) == attempts
            broker.clock.advance(wait)
        await tried(broker, "t", len(waits) + 1)
        assert broker.metric("calls_made_total", protocol="http", outcome=outcome) == len(waits) + 1


async def test_used_up_tries_park_the_call_and_an_operator_resumes_it() -> None:
    async with inside() as broker, site(answering(500, b"oops")) as there:
        await send(broker, "t", there.url, options=CallPolicy(max_attempts=2))
        await tried(broker, "t", 1)
        broker.clock.advance(1_000)
        call = await tried(broker, "t", 2)
        assert (call.state, call.last_error) == ("parked", "status 500: oops")
        broker.clock.advance(DAY)
        await rounds()
        assert len(there.requests) == 2
        there.handler = SUCCESS
        await broker.one(ResumeCalls("t"))
        await done(broker, "t")
        assert broker.metric("call_parked_total") == 1


async def test_a_delayed_call_is_made_when_its_time_has_come() -> None:
    async with inside() as broker, site(SUCCESS) as there:
        await send(broker, "t", there.url, delay_ms=10_000)
        for _ in range(2):
            await rounds(2)
            assert there.requests == []
            broker.clock.advance(4_000)
        broker.clock.advance(4_000)
        await done(broker, "t")


async def test_a_stopped_call_is_not_made_again() -> None:
    async with inside() as broker, site(answering(500)) as there:
        await send(broker, "t", there.url)
        await tried(broker, "t")
        await broker.one(StopCalls("t"))
        broker.clock.advance(DAY)
        await rounds()
        assert len(there.requests) == 1


# --- limits ----------------------------------------------------------------------------------------------------------


async def test_a_host_has_no_more_calls_at_once_than_its_share() -> None:
    free = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await free.wait()
        return web.Response()

    async with inside(calls_per_host=3) as broker, site(wait) as there:
        await send_many(broker, there.url, 20)
        await rounds()
        assert there.at_once == 3
        free.set()
        await none_waiting(broker)
        assert there.most_at_once == 3
        assert len(there.requests) == 20


async def test_all_hosts_together_have_no_more_than_the_limit_and_each_gets_its_turn() -> None:
    async with inside(calls_in_flight=10) as broker, lean() as one, lean() as other:
        await send_many(broker, one.url, 500, "a")
        await send_many(broker, other.url, 500, "b")
        for _ in range(20):
            assert len(broker.broker.calls._held) <= 10
            await asyncio.sleep(0.005)
        await none_waiting(broker)
        assert len(set(one.urls)) == len(set(other.urls)) == len(one.urls) == len(other.urls) == 500


async def test_bodies_in_memory_have_a_limit() -> None:
    async with inside() as broker, lean() as there:
        calls = broker.broker.calls
        calls._settings = CallSettings(max_bytes=50_000)
        for number in range(30):
            await send(broker, f"t{number}", there.url, body=b"x" * 20_000)
        most = 0
        while (await broker.look(lambda store: store.counts())).calls_waiting:
            most = max(most, calls._held_bytes)
            await asyncio.sleep(0)
        assert most <= 50_000 + 20_000
        assert len(there.urls) == 30


# --- waiting ---------------------------------------------------------------------------------------------------------


async def test_waiting_ends_when_all_calls_are_done() -> None:
    async with inside() as broker, site(SUCCESS) as there:
        await send(broker, "t", f"{there.url}/a", f"{there.url}/b")
        view = await broker.door.wait_for_calls("t", 10)
        assert view.state == "done"


async def test_waiting_ends_after_the_first_pass_and_tells_what_failed() -> None:
    async def second_fails(request: web.Request) -> web.Response:
        return web.Response(status=409 if request.path == "/b" else 200, text="no stock")

    async with inside() as broker, site(second_fails) as there:
        await send(broker, "t", *(f"{there.url}/{name}" for name in "abc"))
        view = await asyncio.wait_for(broker.door.wait_for_calls("t", 60), 10)
        assert [call.state for call in view.calls] == ["done", "waiting", "waiting"]
        assert [call.attempts for call in view.calls] == [1, 1, 0]
        assert view.calls[1].last_error == "status 409: no stock"


async def test_waiting_ends_when_the_time_is_up() -> None:
    async with inside() as broker, rough_site(silence) as url:
        await send(broker, "t", url)
        view = await asyncio.wait_for(broker.door.wait_for_calls("t", 0.3), 5)
        assert view.state == "waiting"
        assert (await broker.door.wait_for_calls("t", 0)).state == "waiting"


async def test_waiting_for_a_transaction_without_an_outcome_waits_for_its_commit() -> None:
    async with inside() as broker, site(SUCCESS) as there:
        await broker.do(Prepare("t", "shop", [], Check(after_ms=DAY), None, [OutgoingCall(there.url, b"{}")]))
        waiting = asyncio.create_task(broker.door.wait_for_calls("t", 20))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await broker.do(Commit("t"))
        assert (await asyncio.wait_for(waiting, 10)).state == "done"


async def test_waiting_for_what_was_rolled_back_or_is_unknown_ends_at_once() -> None:
    async with inside() as broker:
        calls = [OutgoingCall("http://127.0.0.1:9/", b"{}")]
        await broker.do(Prepare("t", "shop", [], Check(after_ms=DAY), None, calls))
        await broker.do(Rollback("t"))
        assert (await asyncio.wait_for(broker.door.wait_for_calls("t", 60), 5)).state == "dropped"
        with pytest.raises(NotFound):
            await broker.door.wait_for_calls("nobody", 60)


async def test_the_number_of_those_who_wait_has_a_limit() -> None:
    async with inside() as broker, rough_site(silence) as url:
        await send(broker, "t", url)
        broker.broker.calls._waiters._most = 2
        waiting = [asyncio.create_task(broker.door.wait_for_calls("t", 1)) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(Busy):
            await broker.door.wait_for_calls("t", 1)
        await asyncio.gather(*waiting)
        assert broker.broker.calls._waiters._waiting == {}
        await broker.door.wait_for_calls("t", 0)


# --- check-backs beside them -----------------------------------------------------------------------------------------


async def test_a_transaction_that_nobody_is_to_be_asked_about_is_committed_when_its_time_has_come() -> None:
    async with inside(allow_unchecked=True) as broker, site(SUCCESS) as there:
        calls = [OutgoingCall(there.url, b"{}")]
        await broker.do(Prepare("t", "dtm", [], Check(via="none", after_ms=3_000), None, calls))
        await rounds()
        assert there.requests == []
        broker.clock.advance(3_000)
        assert (await broker.becomes("t", state="committed")).resolved_by == "check"
        await done(broker, "t")
        assert broker.metric("checks_answered_total", via="none", answer="committed") == 1


async def test_channels_of_calls_are_no_business_of_the_check_back() -> None:
    async with inside() as broker:
        url = f"http://127.0.0.1:{closed_port()}/"
        await send(broker, "t", url)
        await tried(broker, "t")
        await rounds()
        assert [channel.via for channel in broker.broker._store.channels()] == ["call"]
        assert broker.broker.checkback._next_look == {}
        await broker.broker.checkback._park_unreachable()


async def test_a_check_sends_its_headers_and_has_a_time_of_its_own() -> None:
    seen: list[Any] = []

    async def slow(request: web.Request) -> web.Response:
        seen.append(request.headers["X-Tenant"])
        await asyncio.sleep(5)
        return web.Response()

    async with inside(check_timeout="60s") as broker, site(slow) as there:
        await broker.prepare("t", via="url", target=there.url, headers={"X-Tenant": "7"}, timeout_ms=200)
        view = await broker.becomes("t", checks=1)
        assert seen == ["7"]
        assert view.last_error == "no answer within 0.2 s"


async def test_a_check_that_outlives_its_claim_is_not_made_twice_at_once() -> None:
    free = asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        await free.wait()
        return web.json_response({"outcome": "committed"})

    async with inside(check_timeout="1s") as broker, site(slow) as there:
        await broker.prepare("t", via="url", target=there.url, timeout_ms=30_000)
        await rounds(2)
        for _ in range(3):
            broker.clock.advance(3_000)
            await rounds(2)
        assert len(there.requests) == 1
        free.set()
        await broker.becomes("t", state="committed")
