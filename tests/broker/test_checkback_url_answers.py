"""Asking a URL: one question over the wire, and what its answer means."""

from __future__ import annotations

import asyncio
import gzip
import time
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from web_sites import answering, closed_port, rough_site, silence, site, speaking

from tallystick.broker.checkback.urls import ask_url, understand
from tallystick.broker.outbound.allow_list import AllowedUrls
from tallystick.broker.outbound.answer import MAX_ANSWER_BYTES, Answered, OutboundFailed
from tallystick.broker.outbound.outbound import Outbound

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
