"""The process that is the network: a TCP proxy for each way from a worker to a broker, and to what brokers share.

    python -m tallystick.chaos.proxy <control port> <listen port>:<target host>:<target port> ...

It knows nothing of what is spoken. A stalled request is held back, and delivered when the stall is over, even if its
sender has given it up since: that is what a network does. What the weather is to be comes as lines `<listen port>
<weather>` over the control port; each is answered when it is so. A process of its own, since the command has its hands
full with looking.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Literal, cast

Weather = Literal["calm", "cut", "stall", "lose"]
CHUNK = 65_536
AGAIN_SECONDS = 0.05


class Proxy:
    """One way between two nodes."""

    def __init__(self, port: int, host: str, target_port: int) -> None:
        self._port, self._target = port, (host, target_port)
        self._weather: Weather = "calm"
        self._open = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._transports: set[asyncio.WriteTransport] = set()

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
                return await asyncio.start_server(self._serve, "127.0.0.1", self._port)
            except OSError:  # somebody's connection was given the port meanwhile; it will not last
                await asyncio.sleep(AGAIN_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
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


async def serve(control_port: int, ways: list[str]) -> None:
    proxies = {int(port): Proxy(int(port), host, int(target)) for port, host, target in map(_places, ways)}
    for proxy in proxies.values():
        await proxy.change("calm")

    async def obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                port, weather = line.decode().split()
                await proxies[int(port)].change(cast(Weather, weather))
                writer.write(b"done\n")
                await writer.drain()
        writer.close()

    control = await asyncio.start_server(obey, "127.0.0.1", control_port)
    await control.serve_forever()


def _places(way: str) -> tuple[str, str, str]:
    """A host may have colons of its own."""
    port, _, target = way.partition(":")
    host, _, target_port = target.rpartition(":")
    return port, host, target_port


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2:]))
