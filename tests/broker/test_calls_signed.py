"""What the broker sends is signed: calls, check-backs and alerts over HTTP, and calls and check-backs over gRPC."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from called_services import calls_of, done, send, tried
from inner_broker import inside

from eventually import eventually_async
from tallystick import Verifier, verifying_interceptor
from tallystick.broker.checkback.urls import ask_url
from tallystick.broker.config import LOOPBACK_URLS
from tallystick.broker.outbound.allow_list import AllowedUrls
from tallystick.broker.outbound.outbound import Outbound
from tallystick.broker.outbound.signer import Signer
from tallystick.core.clock import ManualClock, SystemClock
from tallystick.core.errors import ConfigError, InvalidRequest, Unproven
from tallystick.core.signing import SIGNATURE_HEADER
from tallystick.signing_keys import new_key_line


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "signing.keys"
    path.touch(0o600)
    path.write_text(f"{new_key_line()}\n")
    return path


PLACES = {"/trans-in", "/get", "/rpc", "/check", "/alerts"}


class Site:
    """Answers everything, and keeps what a verifier says of it."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.url = ""
        self.seen: list[tuple[str, str, str | None, bytes]] = []
        self.verdicts: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        signature = request.headers.get(SIGNATURE_HEADER)
        self.seen.append((request.method, request.raw_path, signature, body))
        try:
            self.verifier.verify(signature, request.method, request.raw_path, body)
            self.verdicts.append("proven")
        except Unproven as refusal:
            self.verdicts.append(refusal.reason)
        return web.json_response({"dtm_result": "SUCCESS"})


@contextlib.asynccontextmanager
async def site(keys_file: Path) -> AsyncIterator[Site]:
    made = Site(Verifier(keys_file=keys_file))
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    listening = web.TCPSite(runner, "127.0.0.1", 0)
    await listening.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


async def test_every_kind_of_request_is_signed(keys_file: Path) -> None:
    async with site(keys_file) as there:
        settings = {"signing_keys_file": str(keys_file), "alert_url": f"{there.url}/alerts?to=ops", "max_checks": 1}
        async with inside(**settings) as broker:
            await send(broker, "g1", f"{there.url}/trans-in?x=%2F&y=a+b", f"{there.url}/%7Euser/ä")
            await send(broker, "g2", f"{there.url}/get", body=b"")
            await send(broker, "g3", f"{there.url}/rpc?method=in", protocol="json-rpc")
            await done(broker, "g1", "g2")
            await tried(broker, "g3")
            await broker.prepare("g4", via="url", target=f"{there.url}/check")
            await broker.becomes("g4", state="committed")
            await broker.prepare("g5", via="url", target="http://127.0.0.1:9/")
            await broker.becomes("g5", state="parked")

            async def told() -> bool:
                return any(path.startswith("/alerts") for _, path, _, _ in there.seen)

            await eventually_async(told, "an alert")
    assert {path.partition("?")[0] for _, path, _, _ in there.seen} >= {
        "/trans-in",
        "/get",
        "/rpc",
        "/check",
        "/alerts",
    }
    assert set(there.verdicts) == {"proven"}


async def test_a_repetition_is_signed_anew(keys_file: Path) -> None:
    async with site(keys_file) as there, _outbound(keys_file) as out:
        for _ in range(3):
            await out.request("POST", f"{there.url}/x", {}, b"{}", 5)
    assert there.verdicts == ["proven"] * 3
    assert len({signature for _, _, signature, _ in there.seen}) == 3


async def test_what_one_service_was_sent_cannot_be_played_to_another(keys_file: Path) -> None:
    """Somebody whose own service the broker calls plays the very request to a service of others."""
    async with site(keys_file) as evil, _outbound(keys_file) as out:
        await out.request("POST", f"{evil.url}/trans-in?gid=g1", {}, b"{}", 5)
        await out.request("POST", f"{evil.url.replace('127.0.0.1', 'localhost')}/trans-in?gid=g1", {}, b"{}", 5)
    host = evil.url.removeprefix("http://")
    for (method, path, signature, body), called_as in zip(
        evil.seen, (host, host.replace("127.0.0.1", "localhost")), strict=True
    ):
        assert signature is not None
        Verifier(keys_file=keys_file, hosts=called_as).verify(signature, method, path, body)
        with pytest.raises(Unproven) as refused:
            Verifier(keys_file=keys_file, hosts="payments.internal:8080").verify(signature, method, path, body)
        assert refused.value.reason == "elsewhere"
        forged = signature.replace(f"h={called_as}", "h=payments.internal:8080")
        with pytest.raises(Unproven) as refused:
            Verifier(keys_file=keys_file, hosts="payments.internal:8080").verify(forged, method, path, body)
        assert refused.value.reason == "altered"


async def test_without_keys_nothing_is_added(keys_file: Path) -> None:
    async with site(keys_file) as there, inside() as broker:
        await send(broker, "g1", f"{there.url}/trans-in")
        await done(broker, "g1")
    assert [signature for _, _, signature, _ in there.seen] == [None]


async def test_the_first_key_signs_and_a_changed_file_counts(keys_file: Path) -> None:
    async with site(keys_file) as there, _outbound(keys_file) as out:

        async def key_of_the_next() -> str:
            await out.request("GET", there.url, {}, b"", 5)
            signature = there.seen[-1][2]
            assert signature is not None
            return signature.split("k=")[1].split(",")[0]

        old = keys_file.read_text()
        assert await key_of_the_next() == old.split()[0]
        keys_file.write_text(f"{old}next {'n' * 40}\n")
        assert await key_of_the_next() == old.split()[0]
        keys_file.write_text(f"next {'n' * 40}\n{old}")

        async def turned() -> bool:
            return await key_of_the_next() == "next"

        await eventually_async(turned, "the new key")
    # The service reads the same file; for a moment it may know less of it than the broker, and then refuses.
    assert set(there.verdicts) <= {"proven", "unknown_key"}


@pytest.mark.parametrize("ahead", [400_000, -400_000])
async def test_a_broker_whose_clock_is_wrong_is_refused(keys_file: Path, ahead: int) -> None:
    async with site(keys_file) as there, _outbound(keys_file, ahead) as out:
        await out.request("GET", there.url, {}, b"", 5)
    assert there.verdicts == ["skewed"]


async def test_a_client_cannot_set_the_header_itself() -> None:
    async with inside() as broker:
        for name in (SIGNATURE_HEADER, SIGNATURE_HEADER.lower()):
            with pytest.raises(InvalidRequest, match="set by the broker"):
                await send(broker, "g1", "http://127.0.0.1:9/", headers={name: "t=1"})


@pytest.mark.parametrize("text", [None, "", "a short", "one-word"])
async def test_a_broker_with_a_wrong_file_of_keys_does_not_start(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.touch(0o600)
        path.write_text(text)
    with pytest.raises(ConfigError, match="signing keys"):
        async with inside(signing_keys_file=str(path)):
            pass


async def test_the_secret_is_in_no_log_and_no_repr(keys_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keys_file.chmod(0o644)
    signer = Signer(keys_file)
    async with site(keys_file) as there, inside(signing_keys_file=str(keys_file)) as broker:
        await send(broker, "g1", f"{there.url}/trans-in", "http://127.0.0.1:9/")
        await tried(broker, "g1", index=1)
        view = await calls_of(broker, "g1")
    secret = keys_file.read_text().split()[1]
    assert "mode 644" in caplog.text
    assert secret not in f"{caplog.text}{signer!r}{vars(signer)!r}{view!r}"


# --- gRPC ------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _outbound(keys_file: Path | None, ahead: int = 0) -> AsyncIterator[Outbound]:
    clock = ManualClock(SystemClock().now_ms() + ahead)
    signer = None if keys_file is None else Signer(keys_file, clock)
    made = Outbound(AllowedUrls(LOOPBACK_URLS), signer=signer)
    try:
        yield made
    finally:
        await made.close()


class _Methods(grpc.GenericRpcHandler):
    """Any method; `Stream` of any service is a stream. Requests are text, which is decoded and must be."""

    def __init__(self, asynchronous: bool) -> None:
        self.called: list[tuple[str, Any]] = []
        self._asynchronous = asynchronous

    def service(self, details: Any) -> Any:
        if details.method.endswith("/Stream"):
            return grpc.unary_stream_rpc_method_handler(lambda _, __: iter([b""]))

        def answer(asked: str, _: Any) -> bytes:
            self.called.append((details.method, asked))
            return b""

        async def answer_async(asked: str, context: Any) -> bytes:
            return answer(asked, context)

        behaviour: Callable[..., Any] = answer_async if self._asynchronous else answer
        return grpc.unary_unary_rpc_method_handler(behaviour, request_deserializer=bytes.decode)


class GrpcSite:
    def __init__(self, methods: _Methods, port: int) -> None:
        self.methods, self.port = methods, port

    def url(self, method: str = "/busi.Busi/TransIn") -> str:
        return f"grpc://127.0.0.1:{self.port}{method}"


@contextlib.asynccontextmanager
async def aio_site(verifier: Verifier, **options: Any) -> AsyncIterator[GrpcSite]:
    methods = _Methods(asynchronous=True)
    server = grpc.aio.server(interceptors=[verifying_interceptor(verifier, aio=True, **options)])
    server.add_generic_rpc_handlers((methods,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield GrpcSite(methods, port)
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def thread_site(verifier: Verifier, **options: Any) -> AsyncIterator[GrpcSite]:
    methods = _Methods(asynchronous=False)
    server = grpc.server(
        ThreadPoolExecutor(4), handlers=[methods], interceptors=[verifying_interceptor(verifier, **options)]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield GrpcSite(methods, port)
    finally:
        server.stop(None)


Served = Callable[..., contextlib.AbstractAsyncContextManager[GrpcSite]]
served = pytest.mark.parametrize("served", [aio_site, thread_site])


@served
async def test_calls_and_check_backs_over_grpc_are_believed(served: Served, keys_file: Path) -> None:
    async with (
        served(Verifier(keys_file=keys_file)) as there,
        inside(signing_keys_file=str(keys_file)) as broker,
    ):
        await send(broker, "g1", there.url(), body="tea é".encode(), protocol="grpc")
        await done(broker, "g1")
        await broker.prepare("g2", via="url", target=there.url("/busi.Busi/QueryPrepared"))
        await broker.becomes("g2", state="committed")
        assert there.methods.called == [("/busi.Busi/TransIn", "tea é"), ("/busi.Busi/QueryPrepared", "")]


@served
async def test_a_stranger_over_grpc_is_refused_and_nothing_is_called(served: Served, keys_file: Path) -> None:
    async with served(Verifier(keys_file=keys_file)) as there, _outbound(None) as out:
        for metadata in (
            [],
            [("tallystick-signature", "x")],
            [("tallystick-signature", f"t=1,n=0123456789,k=a,v1={'0' * 64}")],
        ):
            answer = await out.grpc(there.url(), metadata, b"", 5)
            assert answer.code == "UNAUTHENTICATED"
        assert there.methods.called == []
        verdict = await out.grpc(there.url("/busi.Busi/Stream"), [], b"", 5)
        assert verdict.code == "UNAUTHENTICATED"


@served
async def test_over_grpc_nothing_can_be_changed_or_repeated(served: Served, keys_file: Path) -> None:
    marks = [("dtm-gid", "g1"), ("dtm-branch_id", "01")]
    signer = Signer(keys_file)
    async with served(Verifier(keys_file=keys_file)) as there, _outbound(None) as out:

        async def ask(signature: str, path: str, given: Any, body: bytes) -> str:
            metadata = [*given, ("tallystick-signature", signature)]
            return (await out.grpc(there.url(path), metadata, body, 5)).code

        path = "/busi.Busi/TransIn"
        signature = signer.signature("POST", "bank:1", f"{path}?dtm-branch_id=01&dtm-gid=g1", b"x")
        for changed in (
            (path, marks, b"y"),
            ("/busi.Busi/TransOut", marks, b"x"),
            (path, [("dtm-gid", "g2"), marks[1]], b"x"),
            (path, marks[:1], b"x"),
        ):
            assert await ask(signature, *changed) == "UNAUTHENTICATED"
        assert await ask(signature, path, [*marks, ("x-tenant", "7")], b"x") == "OK"
        assert await ask(signature, path, marks, b"x") == "UNAUTHENTICATED"
        assert there.methods.called == [(path, "x")]


@served
async def test_other_methods_may_be_left_to_others(served: Served, keys_file: Path) -> None:
    async with (
        served(Verifier(keys_file=keys_file), methods=("/busi.Busi/",)) as there,
        _outbound(None) as out,
    ):
        assert (await out.grpc(there.url("/public.Api/Get"), [], b"", 5)).code == "OK"
        assert (await out.grpc(there.url(), [], b"", 5)).code == "UNAUTHENTICATED"


async def test_a_service_that_refuses_a_check_back_gives_no_outcome(keys_file: Path) -> None:
    async with aio_site(Verifier(keys_file=keys_file)) as there, _outbound(None) as out:
        with pytest.raises(Exception, match="UNAUTHENTICATED is no clear answer"):
            await ask_url(out, there.url(), "g1", 5)


@served
async def test_over_grpc_the_target_is_signed_too(served: Served, keys_file: Path) -> None:
    elsewhere = Verifier(keys_file=keys_file, hosts="payments.internal:8080")
    async with served(elsewhere) as there, _outbound(keys_file) as out:
        assert (await out.grpc(there.url(), [], b"x", 5)).code == "UNAUTHENTICATED"
    assert there.methods.called == []
