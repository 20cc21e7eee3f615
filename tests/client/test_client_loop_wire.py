"""Requests that carry operations: every answer reaches whom it is for, and every failure has a name."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tallystick.client.connection import loop_wire
from tallystick.client.connection.loop_wire import LoopWire
from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable, Busy
from tallystick.local import free_port

Talk = Callable[["Caller"], Awaitable[None]]


class Caller:
    """One connection, seen from the broker's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def request(self) -> tuple[str, bytes]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.splitlines() if line.startswith("Content-Length:"))
        return head, await self._reader.readexactly(length)

    async def say(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def gone(self) -> bool:
        return not await self._reader.read()


def ok(body: bytes, *headers: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", "")).encode() + body


async def echo(caller: Caller) -> None:
    while True:
        _, body = await caller.request()
        await caller.say(ok(body))


@asynccontextmanager
async def broker(
    *talks: Talk, credentials: str = "", tls: ssl.SSLContext | None = None, path: str = ""
) -> AsyncIterator[LoopWire]:
    """The first connection is answered by the first of `talks`, and so on; the last one goes on with the rest."""
    left = list(talks)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = left.pop(0) if len(left) > 1 else left[0]
        try:
            await talk(Caller(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    wire = LoopWire(f"{'https' if tls else 'http'}://{credentials}127.0.0.1:{port}{path}")
    try:
        yield wire
    finally:
        wire.close()
        server.close()
        await server.wait_closed()


async def test_requests_one_after_the_other_share_a_connection() -> None:
    async with broker(echo) as wire:
        assert [await wire.post(b"%d" % number, 5) for number in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert len(wire._open) == 1


async def test_each_of_many_at_once_gets_its_own_answer() -> None:
    async with broker(echo) as wire:
        bodies = [b"%d" % number for number in range(20)]
        assert await asyncio.gather(*(wire.post(body, 5) for body in bodies)) == bodies


async def test_a_large_body_arrives_whole() -> None:
    async with broker(echo) as wire:
        body = bytes(range(256)) * 16_384
        assert await wire.post(body, 20) == body


async def test_the_request_names_the_broker_and_not_the_credentials() -> None:
    heads = []

    async def note(caller: Caller) -> None:
        heads.append((await caller.request())[0])
        await caller.say(ok(b""))

    async with broker(note, credentials="shop:secret@") as wire:
        await wire.post(b"", 5)
    lines = heads[0].splitlines()
    assert lines[0] == "POST /v1/batch HTTP/1.1"
    assert [line for line in lines if line.startswith("Host: ")] == [f"Host: 127.0.0.1:{wire._place.port}"]
    assert "Authorization: Basic c2hvcDpzZWNyZXQ=" in lines


async def test_an_answer_in_chunks_after_an_interim_one() -> None:
    async def slowly(caller: Caller) -> None:
        await caller.request()
        await caller.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        for piece in (b"HTTP/1.1 200 OK\r\nTransfer-Enc", b"oding: chunked\r\n\r\n2\r\nab\r\n", b"1\r\nc\r\n0\r\n\r\n"):
            await caller.say(piece)
            await asyncio.sleep(0.01)
        await caller.gone()

    async with broker(slowly) as wire:
        assert await wire.post(b"x", 5) == b"abc"


async def test_a_refusal_is_raised_with_when_to_come_again() -> None:
    async def busy(caller: Caller) -> None:
        await caller.request()
        problem = b'{"code":"busy","detail":"too much","status":429,"title":"busy","type":"about:blank"}'
        await caller.say(ok(problem, "Retry-After: 3").replace(b"200 OK", b"429 Too Many Requests"))
        await caller.gone()

    async with broker(busy) as wire:
        with pytest.raises(Busy, match="too much") as refused:
            await wire.post(b"x", 5)
    assert refused.value.extra["retry_after"] == 3.0


async def test_a_connection_that_is_said_to_end_is_not_used_again() -> None:
    async def once(caller: Caller) -> None:
        await caller.request()
        await caller.say(ok(b"last", "Connection: close"))
        assert await caller.gone()

    async with broker(once, echo) as wire:
        assert [await wire.post(b"next", 5) for _ in range(2)] == [b"last", b"next"]


async def test_a_connection_that_was_closed_meanwhile_is_not_used_again() -> None:
    async def close_after_one(caller: Caller) -> None:
        await caller.request()
        await caller.say(ok(b"first"))

    async with broker(close_after_one, echo) as wire:
        assert await wire.post(b"x", 5) == b"first"
        while wire._open:
            await asyncio.sleep(0.001)
        assert await wire.post(b"second", 5) == b"second"


async def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_wire, "IDLE_SECONDS", 0.0)
    async with broker(echo) as wire:
        await wire.post(b"x", 5)
        (first,) = wire._open
        await asyncio.sleep(0.01)
        await wire.post(b"x", 5)
        assert first not in wire._open


async def test_nobody_there_means_that_nothing_was_sent() -> None:
    with pytest.raises(BrokerUnreachable, match="cannot be reached"):
        await LoopWire(f"http://127.0.0.1:{free_port()}").post(b"x", 5)


async def test_no_tls_where_tls_was_asked_for_means_that_nothing_was_sent() -> None:
    async with broker(echo) as plain:
        wire = LoopWire(plain.address.replace("http:", "https:"))
        with pytest.raises(BrokerUnreachable, match="cannot be reached"):
            await wire.post(b"x", 5)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", b"SSH-2.0-broker\r\n"])
async def test_no_whole_answer_means_that_the_broker_may_have_acted(said: bytes) -> None:
    async def cut(caller: Caller) -> None:
        await caller.request()
        await caller.say(said)

    async with broker(cut, echo) as wire:
        with pytest.raises(BrokerUnavailable, match="broke") as failure:
            await wire.post(b"x", 5)
        assert not isinstance(failure.value, BrokerUnreachable)
        assert await wire.post(b"again", 5) == b"again"


async def test_no_answer_in_time_means_that_the_broker_may_have_acted() -> None:
    async def late(caller: Caller) -> None:
        await caller.request()
        assert await caller.gone()  # the connection is given up with the request

    async with broker(late, echo) as wire:
        with pytest.raises(BrokerUnavailable, match=r"did not answer within 0\.1 s") as failure:
            await wire.post(b"x", 0.1)
        assert not isinstance(failure.value, BrokerUnreachable)
        assert await wire.post(b"again", 5) == b"again"


async def test_the_answer_to_a_caller_who_left_is_not_taken_for_the_next_one() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(caller: Caller) -> None:
        await caller.request()
        asked.set()
        await answer.wait()
        await caller.say(ok(b"the first's"))
        await echo(caller)

    async with broker(slow, echo) as wire:
        first = asyncio.ensure_future(wire.post(b"first", 5))
        await asked.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        answer.set()
        assert await wire.post(b"second", 5) == b"second"


async def test_what_is_said_without_being_asked_ends_the_connection() -> None:
    spoken = asyncio.Event()

    async def talkative(caller: Caller) -> None:
        await caller.request()
        await caller.say(ok(b"asked"))
        await spoken.wait()
        await caller.say(ok(b"not asked"))
        assert await caller.gone()

    async with broker(talkative, echo) as wire:
        assert await wire.post(b"x", 5) == b"asked"
        spoken.set()
        while wire._open:
            await asyncio.sleep(0.001)
        assert await wire.post(b"second", 5) == b"second"
