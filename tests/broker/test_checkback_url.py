"""Check-back by URL: only a clear answer is an answer, and no host holds up another."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from inside import eventually, inside, rounds
from web import Site, answering, closed_port, rough_site, silence, site, speaking

from tallystick.broker.checkback.urls import ask_url, understand
from tallystick.broker.outbound import MAX_ANSWER_BYTES, AllowedUrls, Answered, Outbound, OutboundFailed
from tallystick.core.errors import InvalidRequest, NotAllowed
from tallystick.core.ops import Commit
from tallystick.store.memory import open_memory

# --- what an answer means ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (200, b'{"outcome": "committed"}', "committed"),
        (200, b'{"dtm_result": "SUCCESS"}', "committed"),
        (200, b'{"outcome": "committed", "dtm_result": "SUCCESS", "more": [1]}', "committed"),
        (409, b'{"outcome": "rolled_back"}', "rolled_back"),
        (409, b'{"dtm_result": "FAILURE"}', "rolled_back"),
        (425, b'{"outcome": "unknown"}', "unknown"),
        (425, b'{"dtm_result": "ONGOING"}', "unknown"),
        (425, b"", "unknown"),
        # 425 means "ask later" whatever else is said: to ask again is never wrong.
        (425, b'{"outcome": "committed"}', "unknown"),
    ],
)
def test_a_clear_answer(status: int, body: bytes, answer: str) -> None:
    assert understand(Answered(status, body)) == answer


UNCLEAR = [
    (200, b""),
    (200, b"committed"),
    (200, b"SUCCESS"),
    (200, b"<html>It works!</html>"),
    (200, b"Internal Server Error"),
    (200, b"null"),
    (200, b"[]"),
    (200, b"{}"),
    (200, b'{"error": "no such gid"}'),
    (200, b'{"outcome": "rolled_back"}'),
    (200, b'{"dtm_result": "FAILURE"}'),
    (200, b'{"outcome": "unknown"}'),
    (200, b'{"outcome": "COMMITTED"}'),
    (200, b'{"outcome": "committed "}'),
    (200, b'{"outcome": true}'),
    (200, b'{"outcome": ["committed"]}'),
    (200, b'{"outcome": "committed", "dtm_result": "FAILURE"}'),
    (200, b'{"outcome": "committed", "dtm_result": "ONGOING"}'),
    (200, b'{"outcome": "committed"'),
    (200, b'{"outcome": "committed"} trailing'),
    (200, b'\xff\xfe{"outcome": "committed"}'),
    (200, b'{"outcome": "committed"}' + b" " * MAX_ANSWER_BYTES),
    (200, b'{"outcome": "committed", "x": ' + b"[" * 20_000),
    (200, b'{"outcome": "committed", "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
    (201, b'{"outcome": "committed"}'),
    (202, b'{"outcome": "committed"}'),
    (204, b""),
    (301, b'{"outcome": "committed"}'),
    (400, b'{"outcome": "rolled_back"}'),
    (404, b'{"outcome": "rolled_back"}'),
    (404, b""),
    (409, b""),
    (409, b"conflict"),
    (409, b'{"outcome": "committed"}'),
    (409, b'{"dtm_result": "SUCCESS"}'),
    (500, b'{"outcome": "committed"}'),
    (503, b'{"outcome": "rolled_back"}'),
]


@pytest.mark.parametrize(("status", "body"), UNCLEAR, ids=lambda value: repr(value)[:40])
def test_anything_else_is_no_answer(status: int, body: bytes) -> None:
    with pytest.raises(OutboundFailed) as failed:
        understand(Answered(status, body))
    assert failed.value.kind == "unclear"
    assert f"status {status}" in str(failed.value)
    assert len(str(failed.value)) < 1_000


@given(status=st.integers(100, 599), body=st.binary(max_size=60))
def test_no_other_bytes_are_an_outcome(status: int, body: bytes) -> None:
    try:
        answer = understand(Answered(status, body))
    except OutboundFailed:
        return
    assert answer == "unknown"
    assert status == 425


@pytest.mark.parametrize(
    ("status", "permanent"),
    [(200, False), (302, True), (400, True), (403, True), (404, True), (408, False), (429, False), (500, False)],
)
def test_what_asking_again_soon_cannot_mend_is_told_apart(status: int, permanent: bool) -> None:
    with pytest.raises(OutboundFailed) as failed:
        understand(Answered(status, b""))
    assert failed.value.permanent is permanent


# --- one question over the wire ------------------------------------------------------------------------------------


async def asked(url: str, gid: str = "g1", seconds: float = 2.0) -> Any:
    outbound = Outbound(AllowedUrls(["http://127.0.0.1:*", "http://localhost:*"]))
    try:
        return await ask_url(outbound, url, gid, seconds)
    except OutboundFailed as error:
        return error
    finally:
        await outbound.close()


async def test_the_question_is_a_get_in_dtms_manner() -> None:
    async with site() as there:
        assert await asked(f"{there.url}/check?tenant=7", "g{1}:x@y") == "committed"
        (request,) = there.requests
        assert request.method == "GET"
        assert dict(request.query) == {
            "tenant": "7",
            "gid": "g{1}:x@y",
            "trans_type": "msg",
            "branch_id": "00",
            "op": "msg",
        }


async def test_an_answer_that_comes_in_pieces_is_read_whole() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n"
    async with rough_site(speaking(head, b'{"outco', b'me": "comm', b'itted"}')) as url:
        assert await asked(url) == "committed"
    chunks = (b"a\r\n" + b'{"outcome"' + b"\r\n", b"d\r\n" + b':"committed"}' + b"\r\n", b"0\r\n\r\n")
    async with rough_site(speaking(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *chunks)) as url:
        assert await asked(url) == "committed"


async def test_an_answer_that_breaks_off_is_none_and_worth_another_try() -> None:
    whole = b'{"outcome": "committed"}'
    async with rough_site(speaking(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + whole)) as url:
        error = await asked(url)
        assert (error.kind, error.permanent) == ("network", False)


async def test_a_redirect_is_not_followed() -> None:
    async with site() as elsewhere, site(answering(302, b"", headers={"Location": elsewhere.url})) as there:
        error = await asked(there.url)
        assert isinstance(error, OutboundFailed)
        assert (error.kind, error.permanent) == ("unclear", True)
        assert elsewhere.requests == []
        assert len(there.requests) == 1


async def test_cookies_are_not_kept_between_questions() -> None:
    outbound = Outbound(AllowedUrls(["http://127.0.0.1:*"]))
    answer = answering(425, headers={"Set-Cookie": "a=b"})
    async with site(answer) as there:
        for _ in range(2):
            assert await ask_url(outbound, there.url, "g", 2) == "unknown"
        assert [dict(request.cookies) for request in there.requests] == [{}, {}]
    await outbound.close()


async def test_an_answer_without_end_is_cut_off() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 65_536)
            sent += 65_536

    async with site(endless) as there:
        error = await asked(there.url)
        assert isinstance(error, OutboundFailed)
        assert error.kind == "unclear"
        assert sent < 100 * MAX_ANSWER_BYTES  # no more than what lies in the buffers on the way


@pytest.mark.parametrize("rest", [b'", "log": "' + b"x" * MAX_ANSWER_BYTES + b'"}', b'"}' + b" " * MAX_ANSWER_BYTES])
async def test_an_answer_that_had_to_be_cut_off_is_none(rest: bytes) -> None:
    body = b'{"outcome": "committed' + rest
    async with site(answering(200, body)) as there:
        error = await asked(there.url)
        assert isinstance(error, OutboundFailed)
        assert error.kind == "unclear"


async def test_a_compressed_answer_is_not_unpacked() -> None:
    bomb = gzip.compress(b'{"outcome": "committed"}' + b" " * 50_000_000)
    async with site(answering(200, bomb, headers={"Content-Encoding": "gzip"})) as there:
        error = await asked(there.url)
        assert isinstance(error, OutboundFailed)
        assert error.kind == "unclear"


async def test_a_host_that_says_nothing_runs_into_the_timeout() -> None:
    async with rough_site(silence) as url:
        began = time.monotonic()
        error = await asked(url, seconds=0.3)
        assert 0.25 <= time.monotonic() - began < 10
        assert (error.kind, error.permanent) == ("timeout", False)
        assert str(error) == "no answer within 0.3 s"


async def test_a_trickle_runs_into_the_timeout_too() -> None:
    async with rough_site(speaking(b"HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n", *[b" "] * 50, pause=0.05)) as url:
        began = time.monotonic()
        error = await asked(url, seconds=0.4)
        assert time.monotonic() - began < 10
        assert error.kind == "timeout"


async def test_a_refused_connection_is_a_network_error() -> None:
    error = await asked(f"http://127.0.0.1:{closed_port()}/")
    assert (error.kind, error.permanent) == ("network", False)


async def test_a_connection_that_breaks_is_tried_once_more() -> None:
    tries = 0

    async def flaky(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        await reader.readuntil(b"\r\n\r\n")
        tries += 1
        if tries > 1:
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"outcome": "committed"}')
            await writer.drain()

    async with rough_site(flaky) as url:
        assert await asked(url) == "committed"
        assert tries == 2


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"\0\1\2\3" * 10, b"HTTP/1.1 999999 Odd\r\n\r\n", b"HTTP/1.1 200 OK\r\nX" * 9_000],
)
async def test_what_is_not_http_is_an_error_and_nothing_worse(answer: bytes) -> None:
    async with rough_site(speaking(answer)) as url:
        error = await asked(url)
        assert isinstance(error, OutboundFailed)
        assert error.kind in ("network", "protocol")


def out(there: Site, count: int) -> Callable[[], Awaitable[bool]]:
    """Whether so many questions are out."""

    async def look() -> bool:
        return there.at_once == count

    return look


# --- through a broker ----------------------------------------------------------------------------------------------


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
        assert "ClientConnector" in view.last_error


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
        await eventually(out(there, 3), "three questions")
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
        assert time.monotonic() - began < 10
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
        await broker.becomes("alive", state="committed", seconds=10)
        assert time.monotonic() - began < 10


async def test_a_large_share_is_used_in_full() -> None:
    free = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await free.wait()
        return web.json_response({"outcome": "committed"})

    async with inside(checks_per_target=100) as broker, site(wait) as there:
        await broker.prepare(*(f"t{number}" for number in range(110)), **via(there.url))
        await eventually(out(there, 100), "100 questions at once")
        free.set()
        await broker.becomes("t109", state="committed")


async def test_a_producers_own_commit_while_the_question_is_out() -> None:
    free = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await free.wait()
        return web.json_response({"outcome": "rolled_back"}, status=409)

    async with inside() as broker, site(wait) as there:
        await broker.prepare("t", **via(there.url))
        await eventually(out(there, 1), "the question")
        await broker.do(Commit("t"))
        free.set()

        async def contradicted() -> bool:
            return broker.metric("conflict_total") == 1

        await eventually(contradicted, "the conflict")
        assert (await broker.view("t")).state == "committed"


async def test_the_end_of_the_broker_does_not_wait_for_an_answer() -> None:
    async with rough_site(silence) as dead:
        async with inside(check_timeout="60s") as broker:
            await broker.prepare("t", **via(dead))
            await rounds()
            began = time.monotonic()
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("target", ["http://example.com/", "ftp://127.0.0.1:80/", "http://169.254.169.254/latest"])
async def test_a_url_that_is_not_allowed_is_refused_at_the_prepare(target: str) -> None:
    async with inside() as broker:
        with pytest.raises(NotAllowed) as refused:
            await broker.prepare("t", **via(target))
        assert refused.value.field == "ops[0].check.target"
        assert "allowed_urls" in refused.value.detail
        assert await broker.broker.look(lambda store: store.transaction("t")) is None


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
