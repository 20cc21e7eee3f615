"""ASGI by hand: bodies within a limit, answers, callers that go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from msgspec import Struct

from tallystick.core.errors import Busy, InvalidRequest, TooLarge

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class CallerGone(Exception):
    """The one who asked closed the connection before the answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Wait for long work, but not for a caller that is gone: what it would be given then would be lost on it."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise CallerGone
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class UnfinishedBodies:
    """What has come of requests whose rest is still to come: bounded for all of them together. Small ones do not count,
    so that nobody who sends much keeps others from saying a word."""

    SMALL_BYTES = 64 * 1024
    MAX_BYTES = 256 * 1024 * 1024

    def __init__(self) -> None:
        self._total = 0

    def grow(self, held: int, size: int) -> int:
        """Of a request of which `held` bytes are counted, `size` bytes are here: how many are counted now."""
        if size <= self.SMALL_BYTES:
            return held
        if self._total + size - held > self.MAX_BYTES:
            raise Busy("large requests of others are on their way to this broker; try again a little later")
        self._total += size - held
        return size

    def end(self, held: int) -> None:
        self._total -= held


_unfinished = UnfinishedBodies()


async def read_raw(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    """The body within a limit; its declared size is judged before a single byte is read."""
    _check_size(_declared_size(headers.get(b"content-length")), limit)
    body, more = await _piece(receive)
    _check_size(len(body), limit)
    return body if not more else await _gathered(receive, body, limit)


async def _gathered(receive: Receive, first: bytes, limit: int) -> bytes:
    pieces, size, held, more = [first], len(first), 0, True
    try:
        while more:
            held = _unfinished.grow(held, size)
            piece, more = await _piece(receive)
            size += len(piece)
            _check_size(size, limit)
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        _unfinished.end(held)


async def _piece(receive: Receive) -> tuple[bytes, bool]:
    """What has come of the body, and whether there is more. A client that went away before the end of it, or before
    its first byte, has not said what it wants."""
    event = await receive()
    if event["type"] == "http.disconnect":
        raise InvalidRequest("the connection ended before the body did")
    return event.get("body", b""), event.get("more_body", False)


def _declared_size(header: bytes | None) -> int:
    if header is None:
        return 0
    if not header.isdigit():
        raise InvalidRequest(
            f"Content-Length: {header[:40].decode('latin-1')!r} is not a number", field="Content-Length"
        )
    return int(header)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(f"the request has more than {limit} bytes, the limit of this broker")


class HttpAnswer(Struct):
    """An answer: its body as a whole, or in pieces as they are made, each of them some buffers."""

    body: bytes | AsyncIterator[list[memoryview]]
    media_type: str = ""
    status: int = 200
    headers: dict[str, str] = {}

    async def send(self, send: Send) -> None:
        if isinstance(self.body, bytes):
            await answer_raw(send, self.status, self.media_type, self.body, self.headers)
            return
        headers = [(b"content-type", self.media_type.encode()), *_encoded(self.headers)]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        async for piece in self.body:
            # Not "body": large buffers are handed on as they are, instead of being copied into one.
            await send({"type": "http.response.body", "buffers": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


async def answer_raw(send: Send, status: int, media_type: str, body: bytes, more: dict[str, str] | None = None) -> None:
    headers = [(b"content-type", media_type.encode())] if media_type else []
    if status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    if more:
        headers += _encoded(more)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
