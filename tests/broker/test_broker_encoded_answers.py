"""Answers with a coding, such as gzip: asked for by no request, and never read as a success."""

from __future__ import annotations

import gzip

import pytest
from test_calls_http import outbound
from web_sites import answering, rough_site, site, speaking

from tallystick.broker.calls.protocols import make_call
from tallystick.broker.calls.verdicts import CallVerdict
from tallystick.broker.checkback.urls import ask_url
from tallystick.broker.outbound.answer import OutboundFailed
from tallystick.core.calls import OutgoingCall, Protocol

FAILURE = gzip.compress(b'{"dtm_result":"FAILURE"}')
SUCCESS = gzip.compress(b'{"dtm_result":"SUCCESS"}')


def answer(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = b"".join(line + b"\r\n" for line in headers)
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, lines, len(body), body)


def chunked(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(line + b"\r\n" for line in headers)
    return b"HTTP/1.1 200 OK\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (lines, len(body), body)


ENCODED = {
    "gzip": answer(FAILURE, b"Content-Encoding: gzip"),
    "a success": answer(SUCCESS, b"Content-Encoding: gzip"),
    "upper case": answer(FAILURE, b"CONTENT-ENCODING: GZIP"),
    "in chunks": chunked(FAILURE, b"Content-Encoding: gzip", b"Transfer-Encoding: chunked"),
    "a transfer coding": chunked(FAILURE, b"Transfer-Encoding: gzip, chunked"),
    "two lines": answer(FAILURE, b"Content-Encoding: gzip", b"Content-Encoding: identity"),
    "brotli": answer(b"\x8b\x02\x80garbage\x03", b"Content-Encoding: br"),
    "garbage": answer(b"null", b"Content-Encoding: gzip"),
    "unknown": answer(b'{"outcome": "committed"}', b"Content-Encoding: x-ours"),
    "to the end": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + FAILURE,
}
PLAIN = {
    "identity": answer(b'{"outcome": "committed", "jsonrpc": "2.0"}', b"Content-Encoding: identity"),
    "empty value": answer(b'{"outcome": "committed", "jsonrpc": "2.0"}', b"Content-Encoding: "),
    "of an interim answer": b"HTTP/1.1 103 Early Hints\r\nContent-Encoding: gzip\r\n\r\n"
    + answer(b'{"outcome": "committed", "jsonrpc": "2.0"}'),
}


async def called(said: bytes, protocol: Protocol, dtm: bool) -> CallVerdict:
    async with rough_site(speaking(said)) as url, outbound() as out:
        call = OutgoingCall(f"{url}/?method=m", body=b"{}", branch="01", protocol=protocol)
        return await make_call(out, "g1", call, 5_000, dtm)


@pytest.mark.parametrize("dtm", [True, False], ids=["dtm", "native"])
@pytest.mark.parametrize("protocol", ["http", "json-rpc"])
@pytest.mark.parametrize("said", ENCODED.values(), ids=list(ENCODED))
async def test_a_call_with_an_encoded_answer_is_not_done(said: bytes, protocol: Protocol, dtm: bool) -> None:
    verdict = await called(said, protocol, dtm)
    assert (verdict.outcome, verdict.reached) == ("error", True)
    assert "the answer's body is encoded with '" in verdict.error


@pytest.mark.parametrize("dtm", [True, False], ids=["dtm", "native"])
@pytest.mark.parametrize("said", ENCODED.values(), ids=list(ENCODED))
async def test_a_check_back_with_an_encoded_answer_decides_nothing(said: bytes, dtm: bool) -> None:
    async with rough_site(speaking(said)) as url, outbound() as out:
        with pytest.raises(OutboundFailed, match="body is encoded with '") as failed:
            await ask_url(out, url, "g1", 5.0, dtm=dtm)
    assert (failed.value.kind, failed.value.permanent) == ("unclear", False)


@pytest.mark.parametrize("dtm", [True, False], ids=["dtm", "native"])
@pytest.mark.parametrize("said", PLAIN.values(), ids=list(PLAIN))
async def test_a_plain_answer_is_read(said: bytes, dtm: bool) -> None:
    assert (await called(said, "http", dtm)).outcome == "success"
    async with rough_site(speaking(said)) as url, outbound() as out:
        assert await ask_url(out, url, "g1", 5.0, dtm=dtm) == "committed"


async def test_an_empty_body_has_no_coding() -> None:
    said = answer(b"", b"Content-Encoding: gzip")
    for dtm in (True, False):
        assert (await called(said, "http", dtm)).outcome == "success"


@pytest.mark.parametrize(
    ("status", "natively", "by_dtm"),
    [
        (b"409 Conflict", "failure", "error"),  # the body might hold ONGOING, which only dtm's rule reads first
        (b"425 Too Early", "ongoing", "ongoing"),
        (b"500 No", "error", "error"),
        (b"503 No", "unreachable", "unreachable"),
    ],
)
async def test_a_status_that_decides_alone_still_does(status: bytes, natively: str, by_dtm: str) -> None:
    said = answer(FAILURE, b"Content-Encoding: gzip", status=status)
    assert (await called(said, "http", dtm=False)).outcome == natively
    assert (await called(said, "http", dtm=True)).outcome == by_dtm


@pytest.mark.parametrize("given", [None, {"Accept-Encoding": "gzip"}, {"accept-encoding": "br"}])
async def test_every_request_asks_for_no_coding(given: dict[str, str] | None) -> None:
    async with site(answering(200, {"outcome": "committed"})) as there, outbound() as out:
        for protocol in ("http", "json-rpc"):
            call = OutgoingCall(f"{there.url}/?method=m", body=b"{}", branch="01", protocol=protocol, headers=given)
            await make_call(out, "g1", call, 5_000)
        await ask_url(out, there.url, "g1", 5.0, given)
        await out.post_json(there.url, {"event": "test"}, 5.0)
        assert [request.headers.getall("Accept-Encoding") for request in there.requests] == [["identity"]] * 4
