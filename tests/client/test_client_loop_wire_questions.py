"""Questions and long polls go over the same wire: their form, their failures, and what may be asked twice."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from test_client_loop_wire import Caller, broker, echo, ok

from certificates import self_signed
from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable, NotFound


async def answer_once(caller: Caller) -> None:
    """And close the connection with the next question on it."""
    await caller.request()
    await caller.say(ok(b"first"))
    await caller.request()


async def test_a_question_has_its_method_its_path_behind_that_of_a_proxy_and_its_parameters() -> None:
    heads = []

    async def note(caller: Caller) -> None:
        while True:
            heads.append((await caller.request())[0].splitlines()[0])
            await caller.say(ok(b""))

    async with broker(note, path="/behind/a proxy") as wire:
        await wire.request("GET", "/v1/topics/a", query={"offset": 7, "topic": "a&b"}, timeout=5)
        await wire.post(b"", 5)
    assert heads == [
        "GET /behind/a%20proxy/v1/topics/a?offset=7&topic=a%26b HTTP/1.1",
        "POST /behind/a%20proxy/v1/batch HTTP/1.1",
    ]


async def test_long_polls_do_not_keep_others_from_their_answers() -> None:
    waiting = asyncio.Event()

    async def poll(caller: Caller) -> None:
        await caller.request()
        await waiting.wait()
        await caller.say(ok(b"at last"))

    async with broker(poll, echo) as wire:
        polled = asyncio.ensure_future(wire.request("POST", "/v1/groups/g/receive", body=b"x", timeout=30))
        await asyncio.sleep(0)  # it takes the first connection
        while not wire._open:
            await asyncio.sleep(0.001)
        assert await wire.post(b"quick", 5) == b"quick"
        waiting.set()
        assert await polled == b"at last"


async def test_a_look_over_a_connection_that_is_just_closed_is_taken_again() -> None:
    async with broker(answer_once, echo) as wire:
        assert await wire.request("GET", "/v1/info", timeout=5) == b"first"
        assert await wire.request("GET", "/v1/info", body=b"again", timeout=5) == b"again"


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_what_may_have_been_acted_on_is_not_sent_again(method: str) -> None:
    async with broker(answer_once, echo) as wire:
        assert await wire.request("GET", "/v1/info", timeout=5) == b"first"
        with pytest.raises(BrokerUnavailable, match="broke") as failure:
            await wire.request(method, "/v1/topics/a", timeout=5)
        assert not isinstance(failure.value, BrokerUnreachable)


async def test_a_look_is_not_taken_a_third_time() -> None:
    async def never(caller: Caller) -> None:
        await caller.request()

    async with broker(answer_once, never) as wire:
        assert await wire.request("GET", "/v1/info", timeout=5) == b"first"
        with pytest.raises(BrokerUnavailable, match="broke"):
            await wire.request("GET", "/v1/info", timeout=5)


async def test_a_redirect_is_a_failure_and_is_not_followed() -> None:
    async def elsewhere(caller: Caller) -> None:
        await caller.request()
        await caller.say(ok(b"", "Location: http://127.0.0.1:1/").replace(b"200 OK", b"302 Found"))
        assert await caller.gone()

    async with broker(elsewhere) as wire:
        with pytest.raises(BrokerUnavailable, match="answered 302 without a reason"):
            await wire.request("GET", "/v1/info", timeout=5)


async def test_a_refusal_is_the_error_that_it_stands_for() -> None:
    async def unknown(caller: Caller) -> None:
        await caller.request()
        problem = b'{"code":"not_found","detail":"no such topic","status":404,"title":"x","type":"about:blank"}'
        await caller.say(ok(problem).replace(b"200 OK", b"404 Not Found"))
        await caller.gone()

    async with broker(unknown) as wire:
        with pytest.raises(NotFound, match="no such topic"):
            await wire.request("GET", "/v1/topics/a", timeout=5)


async def test_a_closed_wire_ends_what_waits_and_takes_nothing_more() -> None:
    async def silent(caller: Caller) -> None:
        await caller.request()
        assert await caller.gone()

    async with broker(silent) as wire:
        polled = asyncio.ensure_future(wire.request("GET", "/v1/checks", timeout=30))
        while not wire._open:
            await asyncio.sleep(0.001)
        wire.close()
        with pytest.raises(BrokerUnavailable, match="broke"):
            await polled
        with pytest.raises(BrokerUnreachable, match="the client was closed"):
            await wire.request("GET", "/v1/info", timeout=5)


async def test_over_tls_the_broker_must_be_who_its_certificate_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path / "broker.pem", "127.0.0.1")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate)
    async with broker(echo, tls=served) as wire:
        with pytest.raises(BrokerUnreachable, match="certificate"):
            await wire.post(b"secret", 5)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with broker(echo, tls=served) as wire:
        assert await wire.post(b"secret", 5) == b"secret"
        assert await wire.request("PUT", "/v1/topics/a", body=b"too", timeout=5) == b"too"
        assert len(wire._open) == 1


async def test_a_question_that_is_cancelled_as_its_connection_is_made_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    make = loop.create_connection

    async def made_and_cancelled(*args: Any, **options: Any) -> Any:
        made = await make(*args, **options)
        asking.cancel()
        return made

    monkeypatch.setattr(loop, "create_connection", made_and_cancelled)
    async with broker(echo) as wire:
        asking = asyncio.ensure_future(wire.request("POST", "/v1/groups/g/receive", body=b"x", timeout=30))
        with pytest.raises(asyncio.CancelledError):
            await asking
