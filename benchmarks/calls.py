"""Calls: transactions whose branch is a service that the broker calls, and the recovery of one that was down."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks import plain_http
from benchmarks.report import Figure
from benchmarks.service import TrivialService
from tallystick import AsyncClient
from tallystick.core.calls import OutgoingCall
from tallystick.core.ids import new_gid
from tallystick.link import Link

if TYPE_CHECKING:
    from benchmarks.run import Bench
    from tallystick.local import LocalBroker

PAYLOAD = json.dumps({"from": "alice", "to": "bob", "amount": 30})
PER_SECOND = 3_000
RECOVERED_SECONDS = 30.0
DOWN_SECONDS = 20.0  # long enough for waits and probes to have grown to their longest
_LOOK_SECONDS, _LOOK_AGAIN_PER_SECOND = 0.02, 20_000
_PATIENCE_SECONDS = 600.0

Transact = Callable[[str], Awaitable[None]]


def calls(bench: Bench) -> None:
    """prepare + submit + one HTTP branch, called and recorded as done, everything on this machine."""
    count = bench.count(30_000, 500)
    ways = {"the client": _through_client, "dtm's HTTP API": through_dtm}
    for name, way in ways.items():
        place = name.partition(" ")[0]
        with bench.broker(f"calls-{place}") as broker, TrivialService(bench.directory / f"service-{place}") as service:
            rate = bench.run(end_to_end(way, broker, service, count))
        bench.report.add(
            Figure(
                f"prepare + submit + call, {name}",
                rate,
                "tx/s",
                PER_SECOND,
                ratio=rate * bench.fdatasync,
                ratio_of="fdatasyncs/s",
            )
        )


async def end_to_end(
    way: Callable[[str, str, int], Awaitable[None]], broker: LocalBroker, service: TrivialService, count: int
) -> float:
    """Transactions a second, from the first prepare until the last call is recorded as done."""
    await way(broker.url, service.url, max(100, count // 20))
    await asyncio.to_thread(settled, broker.url, 0)
    seen = service.seen()
    began = time.perf_counter()
    await way(broker.url, service.url, count)
    await asyncio.to_thread(settled, broker.url, 0)
    took = time.perf_counter() - began
    _compare(service, seen, count)
    return count / took


def _compare(service: TrivialService, before: int, count: int) -> None:
    """The service must agree with the broker that so many calls were made since it had seen `before`."""
    seen = service.seen() - before
    if seen < count:
        raise RuntimeError(f"{count:,} calls are recorded as done, but the service saw {seen:,}")


async def _through_client(broker: str, service: str, count: int, in_flight: int = 500) -> None:
    async with AsyncClient(broker, group="bench") as client:

        async def transact(gid: str) -> None:
            await client.prepare(gid, [], calls=[OutgoingCall(f"{service}/credit", PAYLOAD.encode())])
            await client.commit(gid)

        await _many(count, [transact] * in_flight)


async def through_dtm(broker: str, service: str, count: int, connections: int = 256) -> None:
    """As dtm's clients do: two requests a transaction, each on a connection that nobody else uses meanwhile."""
    opened = [await plain_http.connect(broker) for _ in range(connections)]
    content = {"trans_type": "msg", "steps": [{"action": f"{service}/credit"}], "payloads": [PAYLOAD]}
    rest = json.dumps({**content, "query_prepared": f"{service}/prepared"}).removeprefix("{")

    def over(connection: plain_http.Connection) -> Transact:
        async def transact(gid: str) -> None:
            body = f'{{"gid":"{gid}",{rest}'.encode()
            await connection.post(b"/api/dtmsvr/prepare", body)
            await connection.post(b"/api/dtmsvr/submit", body)

        return transact

    try:
        await _many(count, [over(connection) for connection in opened])
    finally:
        for connection in opened:
            connection.close()


async def _many(count: int, hands: list[Transact]) -> None:
    """So many transactions; each hand takes the next one when it is free."""
    left = iter(range(count))

    async def work(transact: Transact) -> None:
        for _ in left:
            await transact(new_gid())

    await asyncio.gather(*map(work, hands))


def recovery(bench: Bench) -> None:
    """Transactions whose service was down, delivered after its return, beside as many of a service that hangs."""
    count = bench.count(10_000, 500)
    service = TrivialService(bench.directory / "service-recovery")
    with bench.broker("recovery") as broker, _hanging() as dead:
        bench.run(_through_client(broker.url, service.url, count))
        bench.run(_through_client(broker.url, dead, count))
        time.sleep(DOWN_SECONDS * min(1.0, bench.scale))
        service.start()
        try:
            began = time.perf_counter()
            settled(broker.url, count)
            took = time.perf_counter() - began
            _compare(service, 0, count)
        finally:
            service.kill()
    name = f"{count:,} transactions delivered after their service's return, {count:,} of a dead one beside them"
    bench.report.add(Figure(name, took, "s", RECOVERED_SECONDS, True))


@contextmanager
def _hanging() -> Iterator[str]:
    """A service that takes connections and never answers: worse than one that refuses them."""
    with socket.create_server(("127.0.0.1", 0), backlog=1_000) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def settled(url: str, rest: int) -> None:
    """Wait until no more than `rest` calls wait to be made."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with Link(url) as broker:
        while (waiting := _waiting(broker)) > rest:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{waiting:,} calls still wait after {_PATIENCE_SECONDS:g} s")
            time.sleep(max(_LOOK_SECONDS, (waiting - rest) / _LOOK_AGAIN_PER_SECOND))  # a look costs the broker time


def _waiting(broker: Link) -> int:
    return int(broker.get("info")["calls_waiting"])
