"""Two brokers on two stores against one on one: what grows, and what it costs.

Client, brokers and server share the processors of one machine, so the rate alone says little of a real cluster; beside
it stands how long the brokers' processors work for one transaction.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import loads
from benchmarks.engine_servers import SERVERS
from benchmarks.processes import processor_seconds
from benchmarks.report import Figure
from benchmarks.rounds import Turn, by_turns
from tallystick import AsyncClient

if TYPE_CHECKING:
    from benchmarks.run import Bench
    from tallystick.local import LocalBroker

TRANSACTIONS, WARM_UP, IN_FLIGHT = 30_000, 2_000, 1_000
SIZES = (1, 2)


def engine_spread(bench: Bench) -> None:
    """prepare + commit through one broker on one store, and through two on two."""
    for name, server in SERVERS.items():
        with ExitStack() as opened:
            clusters = {str(size): _cluster(bench, opened, opened.enter_context(server()), size) for size in SIZES}
            for brokers in clusters.values():
                _transactions(bench, brokers, bench.count(WARM_UP, 500))
            count = bench.count(TRANSACTIONS, 1_000)
            found = by_turns({size: partial(_transactions, bench, each, count) for size, each in clusters.items()})
        for size in clusters:
            rate = found.median(lambda turns, size=size: turns[size].rate)
            ratio = found.median(lambda turns, size=size: turns[size].rate / turns["1"].rate)
            cost = found.median(lambda turns, size=size: turns[size].broker)
            what = f"{name}, {size} broker(s) on {size} store(s)"
            bench.report.add(Figure(f"{what}: prepare + commit", rate, "tx/s", ratio=ratio, ratio_of="one on one"))
            bench.report.add(Figure(f"{what}: brokers' time", cost * 1e6, "us"))


def _cluster(bench: Bench, opened: ExitStack, url: str, size: int) -> list[LocalBroker]:
    brokers = [bench.broker(f"spread-{url.partition(':')[0]}-{size}-{n}", store=url, stores=size) for n in range(size)]
    return [opened.enter_context(broker) for broker in brokers]


def _transactions(bench: Bench, brokers: list[LocalBroker], count: int) -> Turn:
    async def measure() -> tuple[float, float]:
        async with AsyncClient(",".join(broker.url for broker in brokers), group="bench") as client:
            return await loads.prepare_commit(client, count, IN_FLIGHT, "bench")

    began = sum(processor_seconds(broker.pid) for broker in brokers)
    rate, median = bench.run(measure())
    used = sum(processor_seconds(broker.pid) for broker in brokers) - began
    return Turn(rate, median, 0.0, broker=used / count)
