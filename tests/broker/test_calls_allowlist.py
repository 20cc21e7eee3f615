"""The URLs that calls may go to: no trick gets further than the operator's patterns, over HTTP or gRPC."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from called_services import grpc_service, lean, send
from inner_broker import inside
from test_broker_allowlist import TRICKS

from tallystick.broker.calls.protocols import make_call
from tallystick.broker.calls.verdicts import CallVerdict
from tallystick.broker.config import LOOPBACK_URLS, Config
from tallystick.broker.outbound.allow_list import AllowedUrls, Resolver
from tallystick.broker.outbound.outbound import Outbound
from tallystick.core.calls import OutgoingCall, protocol_of
from tallystick.core.errors import ConfigError, NotAllowed

ALLOWED = AllowedUrls(LOOPBACK_URLS)
METHOD = "/busi.Busi/TransIn"
AS_GRPC = [url.replace("http://", "grpc://", 1).rstrip("/") + ":50051" + METHOD for url in TRICKS if "://" in url]
MORE = [
    "grpc://127.0.0.1/busi.Busi/TransIn",  # no port, and there is no usual one
    "grpc://127.0.0.1:0/busi.Busi/TransIn",
    "grpc://user@127.0.0.1:50051/a.B/C",
    "grpc://user:pw@127.0.0.1:50051/a.B/C",
    "grpc://2130706433:50051/a.B/C",
    "grpc://0177.0.0.1:50051/a.B/C",
    "grpc://127.1:50051/a.B/C",
    "grpc://0x7f000001:50051/a.B/C",
    "grpc://[::ffff:127.0.0.1]:50051/a.B/C",
    "grpc://localhost.:50051/a.B/C",
    "grpc://127.0.0.1\\@evil:50051/a.B/C",
    "grpc://127.0.0.1%00:50051/a.B/C",
    "grpc://127.0.0.1:50051/a.B/C\0",
    "grpc:127.0.0.1:50051/a.B/C",
    "grpc:///a.B/C",
    "grpcs://127.0.0.1:50051/a.B/C",
    "dns:///127.0.0.1:50051/a.B/C",
    "unix:///tmp/socket",
    "ipv4:127.0.0.1:50051",
    "xds://127.0.0.1:50051/a.B/C",
    "127.0.0.1:50051/a.B/C",
    "http://127.0.0.1:80/\0",
    "http://127.0.0.1:80/\x01",
    "http://127.0.0.1:80/\x7f",
    "http://127.0.0.1:0/",
]


@pytest.mark.parametrize("url", [*TRICKS, *AS_GRPC, *MORE])
def test_no_trick_matches_the_loopback_patterns(url: str) -> None:
    with pytest.raises(NotAllowed):
        ALLOWED.check(url, "calls[0].url")


@pytest.mark.parametrize(
    "url",
    ["grpc://127.0.0.1:50051/a.B/C", "GRPC://LocalHost:50051/a.B/C", "grpc://[::1]:1/a.B/C", "HTTP://LOCALHOST/x%00y"],
)
def test_what_matches_is_allowed_however_it_is_written(url: str) -> None:
    ALLOWED.check(url, "url")


def test_a_pattern_allows_its_scheme_alone() -> None:
    only = AllowedUrls(["grpc://shop.internal:50051"])
    only.check("grpc://shop.internal:50051/a.B/C", "url")
    for url in ("http://shop.internal:50051/", "grpc://shop.internal:50052/a.B/C", "grpc://pay.internal:50051/a.B/C"):
        with pytest.raises(NotAllowed):
            only.check(url, "url")
    with pytest.raises(ConfigError):
        AllowedUrls(["grpcs://shop.internal:50051"])


def test_by_default_only_this_machine_may_be_called_over_either() -> None:
    default = AllowedUrls(Config().allowed_urls)
    default.check("grpc://localhost:1/a.B/C", "url")
    for url in ("grpc://example.com:1/a.B/C", "http://example.com/"):
        with pytest.raises(NotAllowed):
            default.check(url, "url")


async def test_a_call_to_such_a_url_is_refused_when_it_comes_in() -> None:
    async with inside() as broker:
        for url in ("http://evil.com/", "grpc://evil.com:1/a.B/C", "http://127.0.0.1@evil.com/"):
            with pytest.raises(NotAllowed) as refused:
                await send(broker, "t", "http://127.0.0.1:9/", url)
            assert refused.value.field == "ops[0].calls[1].url"


# --- names that lead somewhere, at the time of the call -------------------------------------------------------------


async def made(patterns: list[str], url: str, *addresses: str) -> CallVerdict:
    """The verdict on a call while the name server gives these addresses for every name."""
    allowed = AllowedUrls(patterns)
    out = Outbound(allowed, Resolver(allowed, lambda _: list(addresses)))
    try:
        return await make_call(out, "g", OutgoingCall(url, b"{}", protocol=protocol_of(url, "http")), 2_000)
    finally:
        await out.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "169.254.169.254"])
async def test_a_name_that_leads_to_a_special_address_reaches_nobody(address: str) -> None:
    async with lean() as there, grpc_service() as service:
        urls = [f"http://shop.internal:{there.port}/", f"grpc://shop.internal:{service.port}{METHOD}"]
        patterns = [f"http://*.internal:{there.port}", f"grpc://*.internal:{service.port}"]
        for url in urls:
            verdict = await made(patterns, url, address)
            assert verdict.outcome == "unreachable"
            assert "allowed_urls does not name" in verdict.error
        assert there.urls == []
        assert service.calls == []


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    async with lean() as there, grpc_service() as service:
        patterns = [f"http://shop.internal:{there.port}", f"grpc://shop.internal:{service.port}"]
        # No name server knows this name: only the address that the resolver gave can have been used.
        assert (await made(patterns, f"http://shop.internal:{there.port}/", "127.0.0.1")).outcome == "success"
        grpc_url = f"grpc://shop.internal:{service.port}{METHOD}"
        assert (await made(patterns, grpc_url, "127.0.0.1")).outcome == "success"
        assert len(there.urls) == len(service.calls) == 1


async def test_a_url_that_is_no_longer_allowed_is_an_error_and_says_nothing_about_the_host() -> None:
    verdict = await made(["http://other:80"], "http://shop.internal:80/", "127.0.0.1")
    assert verdict.outcome == "error"
    assert "allowed_urls" in verdict.error
    assert not verdict.reached


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lean() as proxy, lean() as there, grpc_service() as service:
        for name in ("http_proxy", "HTTP_PROXY", "grpc_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        patterns = [f"http://127.0.0.1:{there.port}", f"grpc://127.0.0.1:{service.port}"]
        assert (await made(patterns, there.url)).outcome == "success"
        assert (await made(patterns, service.url())).outcome == "success"
        assert proxy.urls == []


# --- look-ups ---------------------------------------------------------------------------------------------------------


async def test_a_name_server_that_hangs_holds_one_thread_and_delays_no_other_name() -> None:
    free, looked = threading.Event(), []

    def look_up(host: str) -> list[str]:
        looked.append(host)
        if host.startswith("dead"):
            free.wait(10)
            raise socket.gaierror(-3, "no answer")
        return ["10.0.0.5"]

    resolver = Resolver(AllowedUrls(["http://*.internal:80"]), look_up)
    dead = [asyncio.create_task(resolver.addresses(f"dead{number}.internal")) for number in range(20) for _ in range(5)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(resolver.addresses("shop.internal"), 5) == ["10.0.0.5"]
    assert sorted(looked) == sorted([*(f"dead{number}.internal" for number in range(20)), "shop.internal"])
    free.set()
    assert {type(one) for one in await asyncio.gather(*dead, return_exceptions=True)} == {socket.gaierror}
    await resolver.close()


async def test_an_answer_is_kept_for_a_while_and_a_failure_is_not() -> None:
    said: list[Any] = [OSError("down"), ["10.0.0.5"], ["10.0.0.6"]]

    def look_up(_: str) -> list[str]:
        found = said.pop(0)
        if isinstance(found, OSError):
            raise found
        return found  # type: ignore[no-any-return]

    resolver = Resolver(AllowedUrls(["http://*.internal:80"]), look_up)
    with pytest.raises(OSError, match="down"):
        await resolver.addresses("shop.internal")
    assert await resolver.addresses("shop.internal") == ["10.0.0.5"]
    assert await resolver.addresses("shop.internal") == ["10.0.0.5"]
    resolver._known.clear()
    assert await resolver.addresses("shop.internal") == ["10.0.0.6"]
