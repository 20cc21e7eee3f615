"""The loads: what one client process asks of a broker on the same machine."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from tallystick import AsyncClient
from tallystick.core.ids import new_gid
from tallystick.core.message import OutgoingMessage
from tallystick.core.wire import ARROW

VALUE = b"x" * 1024


def message(topic: str, key: str) -> OutgoingMessage:
    return OutgoingMessage(topic, VALUE, key=key)


async def prepare_commit(client: AsyncClient, transactions: int, in_flight: int, topic: str) -> tuple[float, float]:
    """Transactions a second, and the median time of one in seconds, with so many in flight."""
    left = iter(range(transactions))
    times: list[float] = []

    async def producer() -> None:
        for number in left:
            began = time.perf_counter()
            gid = new_gid()
            await client.prepare(gid, [message(topic, str(number % 97))])
            await client.commit(gid)
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(producer() for _ in range(in_flight)))
    return transactions / (time.perf_counter() - began), median(times)


async def prepare_only(client: AsyncClient, transactions: int, topic: str, check_after: float) -> list[str]:
    """Half messages that nobody resolves; the gids."""
    gids: list[str] = []
    left = iter(range(transactions))

    async def producer() -> None:
        for _ in left:
            gid = new_gid()
            await client.prepare(gid, [message(topic, gid[-2:])], check_after=check_after)
            gids.append(gid)

    await asyncio.gather(*(producer() for _ in range(1_000)))
    return gids


async def fill(client: AsyncClient, messages: int, topic: str, at_once: int = 500, senders: int = 4) -> float:
    """Send many messages without transactions; the time it took."""
    left = iter(range(messages // at_once))

    async def sender() -> None:
        for _ in left:
            await client.send_many([message(topic, str(number % 97)) for number in range(at_once)])

    began = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(senders)))
    return time.perf_counter() - began


async def fetch_all(client: AsyncClient, topic: str, starts: list[int], ends: list[int]) -> float:
    """Messages a second of a reader by offset that looks at every message."""
    seen = 0

    async def reader(queue: int) -> None:
        nonlocal seen
        offset = starts[queue]
        while offset < ends[queue]:
            fetched = await client.fetch(topic, queue, offset, max=5_000)
            seen += sum(1 for one in fetched.messages if one.value)
            offset = fetched.next

    began = time.perf_counter()
    await asyncio.gather(*(reader(queue) for queue in range(len(ends))))
    return seen / (time.perf_counter() - began)


async def receive_ack(client: AsyncClient, topic: str, group: str, messages: int, receivers: int = 4) -> float:
    """Messages a second of a group that receives and acknowledges them in batches."""
    settled = 0

    async def receiver() -> None:
        nonlocal settled
        while settled < messages:
            received = await client.receive(topic, group, max=100, wait=1.0)
            if not received:
                return
            await client.ack(group, received)
            settled += len(received)

    began = time.perf_counter()
    await asyncio.gather(*(receiver() for _ in range(receivers)))
    return settled / (time.perf_counter() - began)


async def arrow_read(url: str, topic: str, ends: list[int]) -> float:
    """Messages a second over Arrow streams, decoded into record batches as they come, two queues at a time."""
    began = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        rows = sum(
            pool.map(lambda queue: _arrow_rows(f"{url}/v1/topics/{topic}/queues/{queue}/messages"), range(len(ends)))
        )
    return rows / (time.perf_counter() - began)


def _arrow_rows(address: str) -> int:
    import pyarrow

    request = urllib.request.Request(address, headers={"Accept": ARROW})  # noqa: S310 - our own broker
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return sum(batch.num_rows for batch in pyarrow.ipc.open_stream(answer))
