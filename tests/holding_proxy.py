"""A TCP proxy that stops forwarding and keeps every connection open: a server that hangs, or a path that drops packets.

`hold()` stops all bytes; connections are still accepted. `go_on()` forwards again, but never for a connection that
existed before: those stay open and silent, as after a failover behind a load balancer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class HoldingProxy:
    """Stands before a server on 127.0.0.1. `accepted` counts connections, `open` those that the client has not
    closed."""

    def __init__(self, target_port: int, silent_after: int = -1) -> None:
        """`silent_after`: how many answers of the server a connection gets at most; -1 for all."""
        self._silent_after = silent_after
        self.accepted = 0
        self.open = 0
        self._target = target_port
        self._flowing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._call(self._set(True))

    def hold(self) -> None:
        self._call(self._set(False))

    def go_on(self) -> None:
        self._call(self._set(True))

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _set(self, flowing: bool) -> None:
        self._flowing.clear()
        if flowing:
            self._flowing = asyncio.Event()  # connections that wait for the event before this one stay silent
            self._flowing.set()

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
        self.accepted += 1
        self.open += 1
        flowing = self._flowing
        server: asyncio.StreamWriter | None = None
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                # To the server at once: like a load balancer's, its connection knows nothing of the client's silence.
                answers, server = await asyncio.open_connection("127.0.0.1", self._target)
                pumps = (_pump(reader, server, flowing), self._answer(answers, writer, flowing))
                await _first_of(*pumps)
        finally:
            self.open -= 1
            writer.transport.abort()
            if server is not None:
                server.transport.abort()

    async def _answer(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event
    ) -> None:
        await _pump(answers, writer, flowing, self._silent_after)
        if not flowing.is_set():  # the client does not see that the server closes a connection that is held
            await asyncio.Event().wait()


async def _pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, flowing: asyncio.Event, pieces: int = -1
) -> None:
    while data := await source.read(65536):
        pieces -= 1
        if not flowing.is_set() or pieces == -1:
            await _end_of(source)
            return
        target.write(data)
        await target.drain()


async def _end_of(source: asyncio.StreamReader) -> None:
    while await source.read(65536):
        pass


async def _first_of(*work: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def holding_proxy(target_port: int, silent_after: int = -1) -> Iterator[HoldingProxy]:
    with contextlib.closing(HoldingProxy(target_port, silent_after)) as proxy:
        yield proxy
