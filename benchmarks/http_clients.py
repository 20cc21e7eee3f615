"""What a call costs in processor time: the broker's lean HTTP client beside aiohttp, to a service in another process.

python -m benchmarks.http_clients
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import aiohttp
import uvloop

from benchmarks.rounds import Turn, by_turns
from benchmarks.service import TrivialService
from tallystick.broker.config import LOOPBACK_URLS
from tallystick.broker.outbound.allow_list import AllowedUrls
from tallystick.broker.outbound.outbound import Outbound

CALLS, AT_ONCE = 20_000, 64
BODY = b'{"from": "alice", "to": "bob", "amount": 30}'
HEADERS = {"Content-Type": "application/json"}


async def cost(call: Callable[[], Awaitable[None]]) -> Turn:
    """So many calls, some of them at a time."""
    left = iter(range(CALLS))
    took: list[float] = []

    async def work() -> None:
        for _ in left:
            asked = time.perf_counter()
            await call()
            took.append(time.perf_counter() - asked)

    began, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    spent = time.process_time() - spent
    return Turn(CALLS / (time.perf_counter() - began), median(took), spent / CALLS)


class Clients:
    """Both, on one event loop."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self._runner, self._url = runner, url
        runner.run(self._open())

    async def _open(self) -> None:
        self._outbound = Outbound(AllowedUrls(LOOPBACK_URLS))
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    def lean(self) -> Turn:
        return self._runner.run(cost(self._call_lean))

    def general(self) -> Turn:
        return self._runner.run(cost(self._call_general))

    def close(self) -> None:
        self._runner.run(self._outbound.close())
        self._runner.run(self._session.close())

    async def _call_lean(self) -> None:
        await self._outbound.request("POST", self._url, HEADERS, BODY, 10)

    async def _call_general(self) -> None:
        async with self._session.post(self._url, headers=HEADERS, data=BODY) as answer:
            await answer.read()


def measure(url: str) -> dict[str, float]:
    """Seconds of this process's time a call."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        clients = Clients(runner, url)
        found = by_turns({"lean": clients.lean, "aiohttp": clients.general})
        clients.close()
    return {
        "lean": found.median(lambda turns: turns["lean"].processor),
        "aiohttp": found.median(lambda turns: turns["aiohttp"].processor),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, TrivialService(Path(directory)) as service:
        for name, seconds in measure(f"{service.url}/credit").items():
            print(f"{name}: {seconds * 1e6:.0f} us a call")
