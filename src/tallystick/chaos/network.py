"""The way from each worker to each broker: a TCP proxy that can cut, stall and lose answers.

It knows nothing of what is spoken. A stalled request is held back, and delivered when the stall is over, even if its
sender has given it up since: that is what a network does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, Literal, TypeVar

from tallystick.local import free_port

Weather = Literal["calm", "cut", "stall", "lose"]
CHUNK = 65_536
AGAIN_SECONDS = 0.05
CALL_SECONDS = 30.0
END_SECONDS = 5.0
T = TypeVar("T")


class Crossing:
    """One way between two nodes. Everything here runs on the network's own loop."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self._target = target_port
        self._weather: Weather = "calm"
        self._open = asyncio.Event()
        self._open.set()
        self._listener: asyncio.Server | None = None
        self._transports: set[asyncio.WriteTransport] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def change(self, weather: Weather) -> None:
        self._weather = weather
        if weather == "stall":
            self._open.clear()
        else:
            self._open.set()
        if weather == "cut":
            self._cut()
        elif self._listener is None:
            self._listener = await self._listen()

    def _cut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for transport in list(self._transports):
            transport.abort()

    async def _listen(self) -> asyncio.Server:
        while True:
            try:
                return await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            except OSError:  # somebody's connection was given the port meanwhile; it will not last
                await asyncio.sleep(AGAIN_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            except OSError:
                return writer.transport.abort()
            both = {writer.transport, far_writer.transport}
            self._transports |= both
            if self._weather == "cut":  # since it was accepted
                self._cut()
            try:
                await asyncio.gather(
                    self._requests(reader, far_writer), self._answers(far_reader, writer), return_exceptions=True
                )
            finally:
                self._transports -= both
                for transport in both:
                    transport.abort()
        return None

    async def _requests(self, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK):
                await self._open.wait()
                far.write(data)
                await far.drain()
        finally:
            far.close()  # what was written before still arrives

    async def _answers(self, far: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await far.read(CHUNK):
                await self._open.wait()
                if self._weather == "lose":
                    break
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


class Network:
    """All crossings, served by a thread of their own."""

    def __init__(self) -> None:
        self._crossings: list[Crossing] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-network", daemon=True)
        self._thread.start()

    def cross(self, target_port: int) -> Crossing:
        """A new way to a port on this machine."""
        crossing = Crossing(target_port)
        self._crossings.append(crossing)
        self.change([crossing], "calm")
        return crossing

    def change(self, crossings: Iterable[Crossing], weather: Weather) -> None:
        for crossing in crossings:
            self._call(crossing.change(weather))

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)
        self._loop.close()

    async def _end(self) -> None:
        for crossing in self._crossings:
            await crossing.change("cut")
        ending = asyncio.all_tasks() - {asyncio.current_task()}
        if ending:
            await asyncio.wait(ending, timeout=END_SECONDS)
        await asyncio.sleep(0)  # aborted transports close their sockets in the next turn of the loop

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)
