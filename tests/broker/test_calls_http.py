"""One call over HTTP: the bytes that leave, and everything a service may do with a connection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from called_services import lean
from web_sites import Talk, answering, closed_port, rough_site, silence, site, speaking

from tallystick.broker.calls.protocols import make_call
from tallystick.broker.calls.verdicts import CallVerdict
from tallystick.broker.config import LOOPBACK_URLS
from tallystick.broker.outbound import http1
from tallystick.broker.outbound.allow_list import AllowedUrls, Resolver
from tallystick.broker.outbound.answer import MAX_ANSWER_BYTES, OutboundFailed
from tallystick.broker.outbound.outbound import Outbound
from tallystick.core.calls import OutgoingCall, protocol_of

HEAD = b"HTTP/1.1 200 OK\r\n"
SHORT = HEAD + b"Content-Length: 2\r\n\r\nok"


@contextlib.asynccontextmanager
async def outbound(patterns: list[str] | None = None) -> AsyncIterator[Outbound]:
    made = Outbound(AllowedUrls(patterns or LOOPBACK_URLS))
    try:
        yield made
    finally:
        await made.close()


async def called(url: str, gid: str = "g1", timeout_ms: int = 2_000, **rest: Any) -> CallVerdict:
    rest.setdefault("body", b'{"amount": 30}')
    async with outbound() as out:
        return await make_call(out, gid, OutgoingCall(url, branch="01", **rest), timeout_ms)


async def told(talk: Talk, **rest: Any) -> CallVerdict:
    """The verdict on a service that speaks these bytes."""
    async with rough_site(talk) as url:
        return await called(url, **rest)


# --- what leaves -----------------------------------------------------------------------------------------------------


def recording() -> tuple[Any, dict[str, Any]]:
    seen: dict[str, Any] = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(method=request.method, path=request.path, query=dict(request.query), headers=request.headers.copy())
        seen["body"] = await request.read()
        return web.json_response({"dtm_result": "SUCCESS"})

    return handler, seen


@contextlib.asynccontextmanager
async def recorded() -> AsyncIterator[tuple[str, dict[str, Any]]]:
    handler, seen = recording()
    application = web.Application(client_max_size=8 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


async def test_a_call_is_a_post_in_dtms_manner() -> None:
    async with recorded() as (url, seen):
        assert await called(f"{url}/api/TransIn?tenant=7", "g{1}:x@y") == CallVerdict("success")
        assert seen["method"] == "POST"
        assert seen["path"] == "/api/TransIn"
        assert seen["body"] == b'{"amount": 30}'
        marks = {"gid": "g{1}:x@y", "trans_type": "msg", "branch_id": "01", "op": "action"}
        assert seen["query"] == {"tenant": "7", **marks}
        assert seen["headers"]["Content-Type"] == "application/json"
        assert seen["headers"]["Tallystick-Gid"] == "g{1}:x@y"
        assert seen["headers"]["Tallystick-Branch"] == "01"
        assert seen["headers"]["Idempotency-Key"] == "g{1}:x@y/01"
        assert seen["headers"]["Host"] == url.removeprefix("http://")


async def test_a_call_without_a_body_is_a_get() -> None:
    async with recorded() as (url, seen):
        assert (await called(url, body=b"")).outcome == "success"
        assert (seen["method"], seen["body"]) == ("GET", b"")
        assert "Content-Length" not in seen["headers"]


async def test_headers_of_the_call_are_sent_and_win_over_the_defaults() -> None:
    async with recorded() as (url, seen):
        given = {"content-type": "text/plain", "X-Tenant": "7", "X-Name": "J\u00f6rg", "idempotency-key": "mine"}
        assert (await called(url, headers=given)).outcome == "success"
        assert seen["headers"].getall("Content-Type") == ["text/plain"]
        assert seen["headers"].getall("Idempotency-Key") == ["mine"]
        assert seen["headers"]["X-Tenant"] == "7"


@pytest.mark.parametrize("size", [1, 1024 * 1024, 4 * 1024 * 1024])
async def test_a_body_arrives_as_it_is(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with recorded() as (url, seen):
        assert (await called(url, body=body, timeout_ms=10_000)).outcome == "success"
        assert seen["body"] == body


async def test_characters_that_have_no_place_in_a_request_line_are_encoded() -> None:
    async with recorded() as (url, seen):
        assert (await called(f"{url}/b\u00fccher/%41?q=\u20ac{{1}}&p=%20#part")).outcome == "success"
        assert seen["path"] == "/b\u00fccher/A"
        assert (seen["query"]["q"], seen["query"]["p"]) == ("\u20ac{1}", " ")


async def test_a_json_rpc_call() -> None:
    async with recorded() as (url, seen):
        await called(f"{url}/rpc?method=TransIn", protocol="json-rpc")
        request = msgspec.json.decode(seen["body"])
        assert seen["method"] == "POST"
        assert request == {
            "jsonrpc": "2.0",
            "id": "g1/01",
            "method": "TransIn",
            "params": {"amount": 30, "gid": "g1", "trans_type": "msg", "branch_id": "01", "op": "action"},
        }


async def test_a_json_rpc_call_judges_the_answer_by_its_code() -> None:
    answer = {"jsonrpc": "2.0", "error": {"code": -32901, "message": "no stock"}}
    async with site(answering(200, answer)) as there:
        verdict = await called(f"{there.url}/rpc?method=x", protocol="json-rpc")
        assert verdict == CallVerdict("failure", "error -32901: no stock")


async def test_a_json_rpc_call_with_a_body_that_is_no_object_is_not_sent() -> None:
    async with site() as there:
        verdict = await called(f"{there.url}/rpc?method=x", protocol="json-rpc", body=b"[1]")
        assert verdict.outcome == "error"
        assert "expected a JSON object" in verdict.error
        assert not verdict.reached
        assert there.requests == []


@pytest.mark.parametrize(
    ("url", "protocol", "made"),
    [
        ("http://h/", "http", "http"),
        ("http://h/", "json-rpc", "http"),
        ("http://h/?method=x", "json-rpc", "json-rpc"),
        ("http://h/?method=x", "http", "http"),
        ("http://h/", "grpc", "http"),
        ("grpc://h:1/a.B/C", "http", "grpc"),
        ("grpc://h:1/a.B/C", "grpc", "grpc"),
    ],
)
def test_the_url_decides_how_a_call_is_made(url: str, protocol: Any, made: str) -> None:
    assert protocol_of(url, protocol) == made


# --- what comes back -------------------------------------------------------------------------------------------------


async def test_an_answer_that_comes_in_pieces_is_read_whole() -> None:
    pieces = (b"HTTP/1.1 20", b"0 OK\r\nContent-Le", b'ngth: 24\r\n\r\n{"dtm_re', b'sult":"FAILURE"}')
    assert (await told(speaking(*pieces))).outcome == "failure"
    chunks = (b"7\r\n" + b'{"dtm_r' + b"\r\n", b"11;x=y\r\n" + b'esult":"FAILURE"}' + b"\r\n0\r\n\r\n")
    assert (await told(speaking(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *chunks))).outcome == "failure"


async def test_an_answer_that_ends_with_its_connection_is_read_whole() -> None:
    assert (await told(speaking(HEAD + b"\r\n", b"FAIL", b"URE"))).outcome == "failure"


async def test_interim_answers_are_passed_over() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    assert (await told(speaking(interim, b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n"))).outcome == "failure"
    assert (await told(speaking(interim + b"HTTP/1.1 204 No Content\r\n\r\n"))).outcome == "success"


BROKEN_OFF = [
    (),
    (b"HTTP/1.1 200",),
    (HEAD,),
    (HEAD + b"Content-Length: 10\r\n\r\n",),
    (HEAD + b"Content-Length: 10\r\n\r\nok",),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nok",),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",),
    (b"HTTP/1.1 100 Continue\r\n\r\n",),
]


@pytest.mark.parametrize("pieces", BROKEN_OFF)
async def test_a_connection_that_is_closed_in_the_middle_is_no_answer(pieces: tuple[bytes, ...]) -> None:
    verdict = await told(speaking(*pieces))
    assert verdict.outcome == "unreachable"
    assert "closed before" in verdict.error


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0\1\2\3" * 10,
        b"HTTP/1.1 999999 Odd\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX" * 9_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"RTSP/1.0 200 OK\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_not_http_is_an_error(answer: bytes) -> None:
    verdict = await told(speaking(answer))
    assert verdict.outcome == "error", verdict
    assert verdict.reached


async def test_an_oversized_answer_is_cut_off_and_its_status_counts() -> None:
    async with site(answering(200, b"x" * 10 * MAX_ANSWER_BYTES)) as there:
        assert (await called(there.url)).outcome == "success"
    async with site(answering(500, b"x" * 10 * MAX_ANSWER_BYTES)) as there:
        verdict = await called(there.url)
        assert verdict.outcome == "error"
        assert len(verdict.error) < 300


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
        assert (await called(there.url)).outcome == "success"
        assert sent < 100 * MAX_ANSWER_BYTES  # no more than what lies in the buffers on the way


@pytest.mark.parametrize("filling", [b"HTTP/1.1 100 Continue\r\n\r\n", b"X: y\r\n"])
async def test_headers_without_end_are_no_answer(filling: bytes) -> None:
    first = b"" if filling.startswith(b"HTTP") else HEAD
    pieces = (first, *[filling * 2_000] * 60)
    verdict = await told(speaking(*pieces, pause=0))
    assert verdict.outcome == "error"
    assert "no end" in verdict.error


async def test_a_chunked_answer_that_is_all_chunk_heads_is_cut_off() -> None:
    chunk = b"1;" + b"e" * 1_000 + b"\r\nx\r\n"
    began = time.monotonic()
    pieces = (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk * 60] * 40)
    assert (await told(speaking(*pieces, pause=0))).outcome == "success"
    assert time.monotonic() - began < 20


async def test_a_host_that_says_nothing_runs_into_the_timeout() -> None:
    began = time.monotonic()
    verdict = await told(silence, timeout_ms=300)
    assert 0.25 <= time.monotonic() - began < 10
    assert verdict == CallVerdict("unreachable", "no answer within 0.3 s", reached=False)


async def test_a_trickle_runs_into_the_timeout_too() -> None:
    head = HEAD + b"Content-Length: 24\r\n\r\n"
    verdict = await told(speaking(head, *[b" "] * 50, pause=0.05), timeout_ms=400)
    assert verdict.outcome == "unreachable"


async def test_a_call_may_have_a_time_of_its_own() -> None:
    async with rough_site(silence) as url, outbound() as out:
        call = OutgoingCall(url, b"x", timeout_ms=200)
        verdict = await make_call(out, "g", call, 60_000)
        assert verdict.error == "no answer within 0.2 s"


async def test_a_refused_connection_is_unreachable() -> None:
    verdict = await called(f"http://127.0.0.1:{closed_port()}/")
    assert verdict.outcome == "unreachable"
    assert "Connect" in verdict.error


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    async with site() as elsewhere, site(answering(status, b"", headers={"Location": elsewhere.url})) as there:
        verdict = await called(there.url)
        assert verdict == CallVerdict("error", f"status {status}")
        assert elsewhere.requests == []
        assert len(there.requests) == 1


# --- connections that are kept ---------------------------------------------------------------------------------------


async def post(out: Outbound, url: str) -> int | OutboundFailed:
    try:
        return (await out.request("POST", url, {}, b"x", 2.0)).status
    except OutboundFailed as error:
        return error


async def test_a_connection_is_used_again() -> None:
    async with lean() as there, outbound() as out:
        for _ in range(5):
            assert await post(out, there.url) == 200
        assert len(there.open) == 1
        await asyncio.gather(*(post(out, there.url) for _ in range(10)))
        assert len(there.open) == 10


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "IDLE_SECONDS", 0.1)
    async with lean() as there, outbound() as out:
        await asyncio.gather(*(post(out, there.url) for _ in range(5)))
        assert len(there.open) == 5
        await asyncio.sleep(0.4)
        assert len(there.open) == 0
        assert await post(out, there.url) == 200


NOT_TO_BE_TRUSTED = [
    HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    SHORT + SHORT,
    SHORT + b"HTTP/1.1 200",
    SHORT + b"garbage",
]


@pytest.mark.parametrize("answer", NOT_TO_BE_TRUSTED)
async def test_a_connection_that_cannot_be_trusted_is_not_used_again(answer: bytes) -> None:
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(answer)

    async with rough_site(talk) as url, outbound() as out:
        for _ in range(3):
            said = await post(out, url)
            assert said == 200 or (isinstance(said, OutboundFailed) and said.kind == "protocol")
        assert connections == 3


async def test_an_answer_to_no_question_is_never_taken_for_the_next_one() -> None:
    """A service that speaks behind its answer: the next call must not be settled by what it said."""
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        mine = connections
        await reader.readuntil(b"\r\n\r\n")
        if mine == 1:
            writer.write(SHORT)
            await asyncio.sleep(0.05)
            writer.write(SHORT)
            await reader.read()
        else:
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
            await reader.read()

    async with rough_site(talk) as url, outbound() as out:
        assert await post(out, url) == 200
        await asyncio.sleep(0.15)
        assert await post(out, url) == 500


async def test_a_request_on_a_kept_connection_that_closes_is_not_sent_again() -> None:
    """Whether it was processed is not known: the store decides what follows."""
    requests = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        writer.write(SHORT)
        await reader.readuntil(b"\r\n\r\n")
        requests += 1

    async with rough_site(talk) as url, outbound() as out:
        assert await post(out, url) == 200
        said = await post(out, url)
        assert isinstance(said, OutboundFailed)
        assert said.kind == "network"
        assert requests == 2


async def test_a_connection_that_died_while_idle_is_replaced() -> None:
    async with lean() as there, outbound() as out:
        assert await post(out, there.url) == 200
        for transport in list(there.open):
            transport.abort()
        await asyncio.sleep(0.05)
        assert await post(out, there.url) == 200


async def test_a_call_that_is_given_up_closes_its_connection() -> None:
    async with lean() as there, outbound() as out:
        there.answer = b""
        task = asyncio.create_task(post(out, there.url))
        await asyncio.sleep(0.1)
        assert len(there.open) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert len(there.open) == 0


async def test_of_several_addresses_the_next_is_tried_when_one_refuses() -> None:
    async with lean() as service:  # on IPv4 alone
        allowed = AllowedUrls([f"http://shop.internal:{service.port}"])
        made = Outbound(allowed, Resolver(allowed, lambda _: ["::1", "127.0.0.1"]))
        try:
            assert await post(made, f"http://shop.internal:{service.port}/") == 200
        finally:
            await made.close()
