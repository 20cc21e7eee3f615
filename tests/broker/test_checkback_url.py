"""Check-back by URL through a broker: a clear answer decides, and no host holds up another."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from inner_broker import inside, rounds
from web_sites import Site, answering, closed_port, rough_site, silence, site

from eventually import eventually_async
from tallystick.core.errors import InvalidRequest, NotAllowed
from tallystick.core.ops import Commit
from tallystick.store.memory import open_memory


def out(there: Site, count: int) -> Callable[[], Awaitable[bool]]:
    """Whether so many questions are out."""

    async def look() -> bool:
        return there.at_once == count

    return look


def via(url: str, **rest: Any) -> dict[str, Any]:
    return {"via": "url", "target": url, **rest}


@pytest.mark.parametrize(
    ("status", "body", "state"),
    [
        (200, {"outcome": "committed"}, "committed"),
        (409, {"outcome": "rolled_back"}, "rolled_back"),
        (409, {"dtm_result": "FAILURE"}, "rolled_back"),
    ],
)
async def test_a_clear_answer_decides(status: int, body: dict[str, str], state: str) -> None:
    async with inside() as broker, site(answering(status, body)) as there:
        await broker.prepare("t", **via(there.url))
        view = await broker.becomes("t", state=state)
        assert view.resolved_by == "check"
        assert broker.visible() == (state == "committed")
        assert broker.metric("checks_answered_total", via="url", answer=state) == 1


async def test_not_yet_backs_off_and_the_next_answer_decides() -> None:
    async with inside() as broker, site(answering(425)) as there:
        await broker.prepare("t", **via(there.url))
        view = await broker.becomes("t", checks=1, state="prepared")
        assert 1_600 <= view.next_check_at - broker.clock.now_ms() <= 2_000
        there.handler = answering(200, {"dtm_result": "SUCCESS"})
        await rounds()
        assert len(there.requests) == 1
        broker.clock.advance(2_000)
        await broker.becomes("t", state="committed")


@pytest.mark.parametrize(
    ("status", "body", "soon"),
    [(200, b"oops, an error page", True), (200, {"outcome": "rolled_back"}, True), (404, b"", False), (500, b"", True)],
)
async def test_an_unclear_answer_commits_nothing_and_is_counted(status: int, body: Any, soon: bool) -> None:
    async with inside() as broker, site(answering(status, body)) as there:
        await broker.prepare("t", **via(there.url))
        view = await broker.becomes("t", checks=1, state="prepared")
        assert f"status {status}" in view.last_error
        wait = view.next_check_at - broker.clock.now_ms()
        # What a second question soon cannot mend waits the longest wait at once.
        assert (1_600 <= wait <= 2_000) if soon else (wait == 30_000)
        assert broker.metric("checks_failed_total", via="url", kind="unclear") == 1
        assert broker.visible() == 0


async def test_a_body_that_no_decoder_can_hold_is_counted_like_any_other() -> None:
    deep = b'{"outcome": "committed", "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    async with inside() as broker, site(answering(200, deep)) as there:
        await broker.prepare("t", max_checks=1, **via(there.url))
        view = await broker.becomes("t", state="parked")
        assert view.checks == 1


async def test_a_host_name_that_cannot_be_resolved_is_counted_like_any_other() -> None:
    async with inside(allowed_urls="http://*.test:80") as broker:
        await broker.prepare("t", max_checks=1, **via(f"http://{'a' * 70}.test:80/"))
        view = await broker.becomes("t", state="parked")
        assert view.checks == 1


async def test_errors_are_counted_by_their_kind() -> None:
    async with inside(check_timeout="200ms") as broker, rough_site(silence) as silent:
        await broker.prepare("timeout", **via(silent))
        await broker.prepare("network", **via(f"http://127.0.0.1:{closed_port()}"))
        for kind in ("timeout", "network"):
            await broker.becomes(kind, checks=1, state="prepared")
            assert broker.metric("checks_failed_total", via="url", kind=kind) == 1
        assert broker.metric("checks_sent_total", via="url") == 2


async def test_used_up_checks_park() -> None:
    async with inside() as broker:
        await broker.prepare("t", max_checks=2, **via(f"http://127.0.0.1:{closed_port()}"))
        await broker.becomes("t", checks=1)
        broker.clock.advance(60_000)
        view = await broker.becomes("t", state="parked")
        assert "Connect" in view.last_error


async def test_a_host_gets_no_more_questions_at_once_than_its_share() -> None:
    free = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await free.wait()
        return web.json_response({"outcome": "committed"})

    async with inside(checks_per_target=3) as broker, site(wait) as there:
        names = [f"t{number}" for number in range(12)]
        # Different paths, one host: the share is the host's.
        for name in names:
            await broker.prepare(name, **via(f"{there.url}/{name}"))
        await eventually_async(out(there, 3), "three questions")
        await rounds()
        free.set()
        for name in names:
            await broker.becomes(name, state="committed")
        assert there.most_at_once == 3
        assert len(there.requests) == 12


async def test_a_dead_host_does_not_delay_another() -> None:
    async with inside(check_timeout="30s", checks_per_target=2) as broker, rough_site(silence) as dead, site() as alive:
        for number in range(20):
            await broker.prepare(f"dead{number}", **via(dead))
        await rounds()
        began = time.monotonic()
        for number in range(5):
            await broker.prepare(f"alive{number}", **via(alive.url))
            await broker.becomes(f"alive{number}", state="committed")
        assert time.monotonic() - began < 25
        views = [await broker.view(f"dead{number}") for number in range(20)]
        assert {view.state for view in views} == {"prepared"}


async def test_several_dead_hosts_with_much_that_is_due_do_not_delay_another_either() -> None:
    async with contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(inside(check_timeout="30s"))
        alive = await stack.enter_async_context(site())
        for number in range(5):
            dead = await stack.enter_async_context(rough_site(silence))
            await broker.prepare(*(f"dead{number}-{count}" for count in range(32)), **via(dead))
        await rounds()
        began = time.monotonic()
        await broker.prepare("alive", **via(alive.url))
        await broker.becomes("alive", state="committed")
        assert time.monotonic() - began < 25


async def test_a_large_share_is_used_in_full() -> None:
    free = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await free.wait()
        return web.json_response({"outcome": "committed"})

    async with inside(checks_per_target=100) as broker, site(wait) as there:
        await broker.prepare(*(f"t{number}" for number in range(110)), **via(there.url))
        await eventually_async(out(there, 100), "100 questions at once")
        free.set()
        await broker.becomes("t109", state="committed")


async def test_a_producers_own_commit_while_the_question_is_out() -> None:
    free = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await free.wait()
        return web.json_response({"outcome": "rolled_back"}, status=409)

    async with inside() as broker, site(wait) as there:
        await broker.prepare("t", **via(there.url))
        await eventually_async(out(there, 1), "the question")
        await broker.do(Commit("t"))
        free.set()

        async def contradicted() -> bool:
            return broker.metric("conflict_total") == 1

        await eventually_async(contradicted, "the conflict")
        assert (await broker.view("t")).state == "committed"


async def test_the_end_of_the_broker_does_not_wait_for_an_answer() -> None:
    async with rough_site(silence) as dead:
        async with inside(check_timeout="60s") as broker:
            await broker.prepare("t", **via(dead))
            await rounds()
            began = time.monotonic()
        assert time.monotonic() - began < 25


@pytest.mark.parametrize("target", ["http://example.com/", "ftp://127.0.0.1:80/", "http://169.254.169.254/latest"])
async def test_a_url_that_is_not_allowed_is_refused_at_the_prepare(target: str) -> None:
    async with inside() as broker:
        with pytest.raises(NotAllowed) as refused:
            await broker.prepare("t", **via(target))
        assert refused.value.field == "ops[0].check.target"
        assert "may not call" in refused.value.detail
        assert await broker.look(lambda store: store.transaction("t")) is None


async def test_a_check_by_url_needs_a_url() -> None:
    async with inside() as broker:
        with pytest.raises(InvalidRequest, match=r"ops\[0\]\.check\.target"):
            await broker.prepare("t", via="url")


async def test_an_allowance_that_was_taken_back_stops_the_questions() -> None:
    store = open_memory()
    async with site() as there:
        async with inside(store, allowed_urls="http://127.0.0.1:*") as broker:
            await broker.prepare("t", after_ms=60_000, **via(there.url))
        async with inside(store, allowed_urls="http://127.0.0.1:1") as broker:
            broker.clock.advance(60_000)
            view = await broker.becomes("t", checks=1)
            assert "may not call" in view.last_error
            assert broker.metric("checks_failed_total", via="url", kind="not_allowed") == 1
        assert there.requests == []
