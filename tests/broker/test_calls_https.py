"""Calls over https: the service must be who its certificate says, and the rules are the same."""

from __future__ import annotations

import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp.connector
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tallystick.broker.allowed import AllowedUrls, Resolver
from tallystick.broker.calls.execute import execute
from tallystick.broker.calls.results import Verdict
from tallystick.broker.outbound import Outbound
from tallystick.core.calls import OutgoingCall


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """One that the service `shop.internal` signed itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shop.internal")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("shop.internal")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "service.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return path


@contextlib.asynccontextmanager
async def tls_site(certificate: Path, status: int = 200) -> AsyncIterator[tuple[int, list[web.Request]]]:
    seen: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response(status=status, headers={"Location": "https://evil.com/"}, text="SUCCESS")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield runner.addresses[0][1], seen
    finally:
        await runner.cleanup()


async def called(host: str, port: int, *addresses: str, named: bool = True) -> Verdict:
    allowed = AllowedUrls([f"https://{host}:{port}" if named else f"https://*.internal:{port}"])
    out = Outbound(allowed, Resolver(allowed, lambda _: list(addresses)))
    try:
        call = OutgoingCall(f"https://{host}:{port}/in?tenant=7", b'{"amount":30}', {"X-Tenant": "7"}, branch="01")
        return await execute(out, "g{1}", call, 5_000)
    finally:
        await out.close()


def trust(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", context)


async def test_a_call_over_https(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(certificate, monkeypatch)
    async with tls_site(certificate) as (port, seen):
        assert await called("shop.internal", port, "127.0.0.1") == Verdict("success")
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
