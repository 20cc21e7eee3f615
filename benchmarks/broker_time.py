"""What a transaction costs the broker's processor, whoever sends it: clients that coalesce, and those that do not.

The load comes from processes of its own, so that the broker is never kept waiting by one that has to send.
`python -m benchmarks.broker_time WAY BROKER SERVICE COUNT CONNECTIONS` is one of them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import uvloop

from benchmarks import loads, plain_http
from benchmarks.calls import settled, through_dtm
from benchmarks.processes import processor_seconds
from benchmarks.report import Figure
from benchmarks.service import TrivialService
from tallystick import AsyncClient
from tallystick.core.ids import new_gid
from tallystick.local import module

if TYPE_CHECKING:
    from benchmarks.run import Bench
    from tallystick.local import LocalBroker

PROCESSES = 2
IN_FLIGHT = 64
VALUE = "x" * 1024


def broker_time(bench: Bench) -> None:
    """Processor time of the broker a transaction, and the latency of one alone."""
    count = bench.count(20_000, 2_000)
    for way, name, most in (
        ("plain", f"plain HTTP prepare + commit, {IN_FLIGHT} in flight", 130),
        ("dtm", f"dtm's HTTP API + one branch, {IN_FLIGHT} in flight", 150),
    ):
        place = bench.directory / f"service-time-{way}"
        with bench.broker(f"time-{way}") as broker, TrivialService(place) as service:
            _load(way, broker, service, count // 10)
            began = processor_seconds(broker.pid)
            _load(way, broker, service, count)
            used = (processor_seconds(broker.pid) - began) / count
        bench.report.add(Figure(f"broker's time: {name}", used * 1e6, "us", most, True))
    with bench.broker("time-native") as broker:
        bench.run(_native(bench, broker))


def _load(way: str, broker: LocalBroker, service: TrivialService, count: int) -> None:
    shares = str(count // PROCESSES), str(IN_FLIGHT // PROCESSES)
    command = module("benchmarks.broker_time", way, broker.url, service.url, *shares)
    running = [subprocess.Popen(command) for _ in range(PROCESSES)]
    if sum(process.wait() for process in running):  # every one is waited for
        raise RuntimeError("a process of the load failed")
    settled(broker.url, 0)


async def _plain(broker: str, _: str, count: int, connections: int) -> None:
    """Two requests a transaction in JSON, as a client of any language sends them."""
    opened = [await plain_http.connect(broker) for _ in range(connections)]
    left = iter(range(count))

    async def work(connection: plain_http.Connection) -> None:
        for number in left:
            gid = new_gid()
            content = {"gid": gid, "group": "bench"}
            content["messages"] = [{"topic": "bench", "value": VALUE, "key": str(number % 97)}]
            await connection.post(b"/v1/transactions", json.dumps(content).encode(), 201)
            await connection.post(f"/v1/transactions/{gid}/commit".encode(), b"")

    await asyncio.gather(*map(work, opened))
    for connection in opened:
        connection.close()


async def _native(bench: Bench, broker: LocalBroker) -> None:
    count, few = bench.count(100_000, 10_000), bench.count(1_000, 200)
    async with AsyncClient(broker.url, group="bench") as client:
        await loads.prepare_commit(client, count // 10, 1_000, "bench")
        began = processor_seconds(broker.pid)
        await loads.prepare_commit(client, count, 1_000, "bench")
        used = (processor_seconds(broker.pid) - began) / count
        bench.report.add(Figure("broker's time: native client, 1,000 in flight", used * 1e6, "us", 22, True))
        began = processor_seconds(broker.pid)
        _, median = await loads.prepare_commit(client, few, 1, "bench")
        used = (processor_seconds(broker.pid) - began) / few
    beyond = median - 2 * bench.fdatasync
    bench.report.add(Figure("broker's time: native client, 1 in flight", used * 1e6, "us"))
    bench.report.add(Figure("native client, 1 in flight: beyond two fdatasyncs", beyond * 1e3, "ms", 0.7, True))


WAYS: dict[str, Callable[[str, str, int, int], Awaitable[None]]] = {"plain": _plain, "dtm": through_dtm}


if __name__ == "__main__":
    way, broker, service, count, connections = sys.argv[1:]
    uvloop.run(WAYS[way](broker, service, int(count), int(connections)))
