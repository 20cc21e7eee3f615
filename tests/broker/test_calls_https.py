"""Calls over https: the service must be who its certificate says, and the rules are the same."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from web_sites import closed_port, rough_site, silence, speaking

from certificates import write_certificate
from tallystick.broker.calls.protocols import make_call
from tallystick.broker.calls.verdicts import CallVerdict
from tallystick.broker.outbound import http1
from tallystick.broker.outbound.allow_list import AllowedUrls, Resolver
from tallystick.broker.outbound.answer import MAX_ANSWER_BYTES
from tallystick.broker.outbound.outbound import Outbound
from tallystick.core.calls import OutgoingCall


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """One that the service `shop.internal` signed itself, with its key."""
    return write_certificate(tmp_path / "service.pem", "shop.internal")


@contextlib.asynccontextmanager
async def tls_site(certificate: Path, status: int = 200) -> AsyncIterator[tuple[int, list[web.Request]]]:
    seen: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response(status=status, headers={"Location": "https://evil.com/"}, text="SUCCESS")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=served(certificate)).start()
        yield runner.addresses[0][1], seen
    finally:
        await runner.cleanup()


def served(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


@contextlib.asynccontextmanager
async def outbound(host: str, port: int, *addresses: str, named: bool = True) -> AsyncIterator[Outbound]:
    allowed = AllowedUrls([f"https://{host}:{port}" if named else f"https://*.internal:{port}"])
    out = Outbound(allowed, Resolver(allowed, lambda _: list(addresses)))
    try:
        yield out
    finally:
        await out.close()


async def called(
    host: str, port: int, *addresses: str, named: bool = True, timeout_ms: int = 5_000, times: int = 1
) -> CallVerdict:
    call = OutgoingCall(f"https://{host}:{port}/in?tenant=7", b'{"amount":30}', {"X-Tenant": "7"}, branch="01")
    async with outbound(host, port, *addresses, named=named) as out:
        for _ in range(times):
            verdict = await make_call(out, "g{1}", call, timeout_ms)
    return verdict


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def trust(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(http1, "tls_context", lambda: context)


async def test_a_call_over_https(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(certificate, monkeypatch)
    async with tls_site(certificate) as (port, seen):
        assert await called("shop.internal", port, "127.0.0.1") == CallVerdict("success")
        (request,) = seen
        assert request.method == "POST"
        assert dict(request.query) == {
            "tenant": "7",
            "gid": "g{1}",
            "trans_type": "msg",
            "branch_id": "01",
            "op": "action",
        }
        assert request.headers["X-Tenant"] == "7"
        assert request.headers["Host"] == f"shop.internal:{port}"


async def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Path) -> None:
    async with tls_site(certificate) as (port, seen):
        verdict = await called("shop.internal", port, "127.0.0.1")
        assert verdict.outcome == "error"
        assert "certificate" in verdict.error.lower()
        assert seen == []


async def test_a_certificate_of_another_name_is_refused(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(certificate, monkeypatch)
    async with tls_site(certificate) as (port, seen):
        assert (await called("pay.internal", port, "127.0.0.1")).outcome == "error"
        assert seen == []


async def test_a_redirect_is_not_followed(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(certificate, monkeypatch)
    async with tls_site(certificate, 302) as (port, seen):
        assert (await called("shop.internal", port, "127.0.0.1")).error.startswith("status 302")
        assert len(seen) == 1


async def test_a_name_that_leads_to_loopback_reaches_nobody(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(certificate, monkeypatch)
    async with tls_site(certificate) as (port, seen):
        verdict = await called("shop.internal", port, "127.0.0.1", named=False)
        assert verdict.outcome == "unreachable"
        assert "allowed_urls does not name" in verdict.error
        assert seen == []


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_a_connection_is_used_again(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(certificate, monkeypatch)
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readuntil(b"30}"):
            writer.write(ANSWER)

    async with rough_site(talk, served(certificate)) as url:
        assert await called("shop.internal", port_of(url), "127.0.0.1", times=5) == CallVerdict("success")
    assert connections == 1


async def test_an_answer_that_ends_with_the_connection(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(certificate, monkeypatch)
    async with rough_site(speaking(b"HTTP/1.1 200 OK\r\n\r\n", b"FAILURE"), served(certificate)) as url:
        assert (await called("shop.internal", port_of(url), "127.0.0.1", times=2)).outcome == "failure"


async def test_a_service_that_does_not_answer(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(certificate, monkeypatch)
    reasons = {
        silence: "no answer within 0.5 s",
        speaking(): "closed before an answer came",
        speaking(ANSWER[:-1]): "closed before the answer was complete",
    }
    for talk, reason in reasons.items():
        async with rough_site(talk, served(certificate)) as url:
            verdict = await called("shop.internal", port_of(url), "127.0.0.1", timeout_ms=500)
            assert (verdict.outcome, verdict.reached) == ("unreachable", False)
            assert reason in verdict.error


async def test_a_large_answer_is_cut_off(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(certificate, monkeypatch)
    size = 4 * MAX_ANSWER_BYTES
    talk = speaking(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode(), b"x" * size)
    async with rough_site(talk, served(certificate)) as url:
        port = port_of(url)
        async with outbound("shop.internal", port, "127.0.0.1") as out:
            answered = await out.request("POST", f"https://shop.internal:{port}/", {}, b"{}", 5)
        assert (answered.status, len(answered.body), answered.cut) == (200, MAX_ANSWER_BYTES, True)


async def test_a_service_that_speaks_no_tls_has_answered_in_no_language_we_know() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER)

    async with rough_site(talk) as url:
        verdict = await called("shop.internal", port_of(url), "127.0.0.1")
        assert (verdict.outcome, verdict.reached) == ("error", True)


async def test_nobody_is_there() -> None:
    assert (await called("shop.internal", closed_port(), "127.0.0.1")).outcome == "unreachable"


async def test_of_several_addresses_one_that_answers_is_enough(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(certificate, monkeypatch)
    async with tls_site(certificate) as (port, _):
        assert await called("shop.internal", port, "127.0.0.2", "127.0.0.1") == CallVerdict("success")
