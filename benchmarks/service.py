"""A service that costs next to nothing: `python -m benchmarks.service PORT` answers every request with success.

It shares the machine with the broker that calls it, so whatever it spent on a request the broker could not.
`GET /seen` tells how many requests there were.
"""

from __future__ import annotations

import asyncio
import re
import sys
import urllib.request
from pathlib import Path
from typing import cast

import uvloop

from tallystick.local import LocalService

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SEEN = b"GET /seen "


def _answer(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


_SUCCESS = _answer(b'{"dtm_result":"SUCCESS"}')


class Answering(asyncio.Protocol):
    """One connection; requests may come in pieces, or several at once."""

    requests = 0

    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of uvloop it is one in all but its class

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        if data.startswith(_SEEN):
            self._transport.write(_answer(b"%d" % Answering.requests))
            return
        whole, begin = 0, 0
        while (end := _end_of_request(data, begin)) is not None:
            whole, begin = whole + 1, end
        self._rest = data[begin:]
        Answering.requests += whole
        self._transport.write(_SUCCESS * whole)


def _end_of_request(data: bytes, begin: int) -> int | None:
    """Where the request that begins here ends, or None if it is not all here."""
    head = data.find(b"\r\n\r\n", begin)
    if head < 0:
        return None
    length = _LENGTH.search(data, begin, head + 2)
    end = head + 4 + (int(length[1]) if length else 0)
    return end if end <= len(data) else None


class TrivialService(LocalService):
    """The service as a process of its own, which can be down for a while."""

    def __init__(self, directory: Path) -> None:
        super().__init__("service", [sys.executable, __file__, "{port}"], directory / "service.log")

    def seen(self) -> int:
        """How many calls it has answered since it was started."""
        with urllib.request.urlopen(f"{self.url}/seen", timeout=30) as answer:  # noqa: S310 - our own
            return int(answer.read())


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", port, backlog=1_000)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
