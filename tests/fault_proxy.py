"""A bad network in user space: a TCP proxy that understands where HTTP requests begin and end.

Each request gets a fault from a schedule. Besides what every network does (delay, cut, lose the answer) it does what
only retries over several connections do: deliver a request twice, or long after the client gave up on it and moved on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Literal, NamedTuple, TypeVar, get_args

FaultKind = Literal[
    "none",
    "delay",  # arrives `seconds` late
    "refuse",  # the connection ends before the request is passed on
    "cut request",  # the broker sees a `share` of it, then the connection ends
    "lose answer",  # the broker acts, the client hears nothing
    "cut answer",  # the client gets a `share` of the answer
    "twice",  # passed on, and again on a second connection, `seconds` later
    "late",  # the client's connection ends at once, the request arrives `seconds` later
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

T = TypeVar("T")


class Fault(NamedTuple):
    kind: FaultKind = "none"
    seconds: float = 0.0
    share: float = 0.0


Schedule = Callable[[str], Fault]
"""Chooses the fault of a request by its first line."""


class _Cut(Exception):
    """The connection ends here."""


class FaultProxy:
    """Stands before a broker on 127.0.0.1. `calm()` makes it a perfect network."""

    def __init__(self, target_port: int, schedule: Schedule) -> None:
        self.met: Counter[str] = Counter()
        self._target, self._schedule = target_port, schedule
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def calm(self) -> None:
        self._schedule = lambda request: Fault()

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(_Cut, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            async with _connection(self._target) as broker:
                while True:
                    request = await _read_message(reader)
                    await self._pass_on(request, reader, writer, broker)
        writer.transport.abort()

    async def _pass_on(
        self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, broker: _Link
    ) -> None:
        fault = self._schedule(request.partition(b"\r\n")[0].decode())
        self.met[fault.kind] += 1
        if fault.kind == "late":
            self._later(request, fault.seconds)
        if fault.kind in ("late", "refuse"):
            raise _Cut
        if fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
        if fault.kind == "cut request":
            await broker.send(request[: int(len(request) * fault.share)])
            raise _Cut
        if fault.kind == "twice":
            self._later(request, fault.seconds)
        answer = await _unless_gone(reader, broker.ask(request))
        if fault.kind == "lose answer":
            raise _Cut
        writer.write(answer[: int(len(answer) * fault.share)] if fault.kind == "cut answer" else answer)
        await writer.drain()
        if fault.kind == "cut answer":
            raise _Cut

    def _later(self, request: bytes, seconds: float) -> None:
        task = self._loop.create_task(self._deliver(request, seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, request: bytes, seconds: float) -> None:
        await asyncio.sleep(seconds)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with _connection(self._target) as broker:
                await broker.ask(request)


class _Link:
    """A connection to the broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def ask(self, request: bytes) -> bytes:
        await self.send(request)
        return await _read_message(self._reader)


@contextlib.asynccontextmanager
async def _connection(port: int) -> AsyncIterator[_Link]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield _Link(reader, writer)
    finally:
        writer.transport.abort()


async def _unless_gone(client: asyncio.StreamReader, work: Coroutine[Any, Any, bytes]) -> bytes:
    """The result of `work`; given up when the client closes its end, as a broken long poll does."""
    answer = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(client.read(1))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise _Cut
        return answer.result()
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    """One HTTP request or answer with its body; both ends here say its length."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
    length = next((int(value) for name, _, value in lines if name == b"content-length"), 0)
    return head + await reader.readexactly(length)


@contextlib.contextmanager
def fault_proxy(target_port: int, schedule: Schedule) -> Iterator[FaultProxy]:
    proxy = FaultProxy(target_port, schedule)
    try:
        yield proxy
    finally:
        proxy.close()
