"""What a call costs in processor time: the broker's lean HTTP client beside aiohttp, to a service in another process.

python -m benchmarks.http_clients
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import uvloop

from benchmarks.service import TrivialService
from tallystick.broker.config import LOOPBACK_URLS
from tallystick.broker.outbound.allow_list import AllowedUrls
from tallystick.broker.outbound.outbound import Outbound

CALLS, AT_ONCE, ROUNDS = 20_000, 64, 5
BODY = b'{"from": "alice", "to": "bob", "amount": 30}'
HEADERS = {"Content-Type": "application/json"}


async def cost(call: Callable[[], Awaitable[None]]) -> float:
    """Microseconds of this process's time a call."""
    left = iter(range(CALLS))

    async def work() -> None:
        for _ in left:
            await call()

    began = time.process_time()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return (time.process_time() - began) / CALLS * 1e6


async def measure(url: str) -> None:
    outbound = Outbound(AllowedUrls(LOOPBACK_URLS))

    async def lean() -> None:
        await outbound.request("POST", url, HEADERS, BODY, 10)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def general() -> None:
            async with session.post(url, headers=HEADERS, data=BODY) as answer:
                await answer.read()

        # By turns, so that both see the same machine; the best of each is what it needs when nobody disturbs it.
        rounds = [(await cost(lean), await cost(general)) for _ in range(ROUNDS)]
    await outbound.close()
    for name, times in zip(("lean", "aiohttp"), zip(*rounds, strict=True), strict=True):
        print(f"{name}: {min(times):.0f} us a call (best of {ROUNDS}; worst {max(times):.0f})")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, TrivialService(Path(directory)) as service:
        uvloop.run(measure(f"{service.url}/credit"))
