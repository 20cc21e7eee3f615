"""A broker as a process on each engine, servers and one client process beside it on the same machine.

Engines take turns, so that all see the same machine; the medians count, and ratios are those of one round to RocksDB.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import loads
from benchmarks.calls import end_to_end, through_dtm
from benchmarks.engine_servers import SERVERS
from benchmarks.report import Figure
from benchmarks.rounds import Rounds, Turn, by_turns
from benchmarks.service import TrivialService
from tallystick import AsyncClient

if TYPE_CHECKING:
    from benchmarks.run import Bench
    from tallystick.local import LocalBroker

NEAR = "RocksDB"
TRANSACTIONS, CALLED, STORED = 30_000, 5_000, 100_000
MOST_TRIPS = 3
# What each is to reach a second: with 1,000 in flight, with 64, and through dtm's API (three times dtm itself).
TARGETS = {"PostgreSQL": (5_000, 3_000, 1_200), "MariaDB": (4_000, 3_000, 1_020), "Redis": (8_000, 3_000, 2_490)}
FETCHED = {"PostgreSQL": 50_000}
_TRIPS, _COMMITS = "tallystick_store_round_trips_total", "tallystick_group_commit_seconds_count"

Measure = Callable[["LocalBroker"], Turn]


def engine_brokers(bench: Bench) -> None:
    """prepare + commit, calls and fetches through a broker on each engine."""
    with ExitStack() as opened:
        brokers = {NEAR: opened.enter_context(bench.broker("engine-rocksdb"))}
        for name, server in SERVERS.items():
            url = opened.enter_context(server())
            brokers[name] = opened.enter_context(bench.broker(f"engine-{name}", store=url, stores=1))
        service = opened.enter_context(TrivialService(bench.directory / "engine-service"))
        for broker in brokers.values():
            bench.run(_warm_up(broker.url))
        for place, in_flight in enumerate((1_000, 64)):
            found = _turns(brokers, partial(_transactions, bench, in_flight))
            what = f"broker, prepare + commit, {in_flight:,} in flight"
            _report(bench, found, what, "tx/s", {name: wanted[place] for name, wanted in TARGETS.items()})
            _report_trips(bench, found, in_flight)
        found = _turns(brokers, partial(_calls, bench, service))
        _report(bench, found, "broker, dtm's HTTP API, one branch", "tx/s", {name: t[2] for name, t in TARGETS.items()})
        for broker in brokers.values():
            bench.run(_fill(broker.url, bench.count(STORED, 5_000)))
        found = _turns(brokers, partial(_fetch, bench))
        _report(bench, found, "broker, fetch by offset", "messages/s", FETCHED)


def _turns(brokers: Mapping[str, LocalBroker], measure: Measure) -> Rounds:
    return by_turns({name: partial(measure, broker) for name, broker in brokers.items()})


def _report(bench: Bench, found: Rounds, what: str, unit: str, targets: Mapping[str, float]) -> None:
    for name in (NEAR, *SERVERS):
        rate = found.median(lambda turns, name=name: turns[name].rate)
        ratio = found.median(lambda turns, name=name: turns[name].rate / turns[NEAR].rate)
        bench.report.add(Figure(f"{name} {what}", rate, unit, targets.get(name), ratio=ratio, ratio_of=NEAR))


def _report_trips(bench: Bench, found: Rounds, in_flight: int) -> None:
    for name in SERVERS:
        trips = found.median(lambda turns, name=name: turns[name].requests)
        what = f"{name} broker, round trips a group commit, {in_flight:,} in flight"
        bench.report.add(Figure(what, trips, "", MOST_TRIPS, True))


# --- the loads -------------------------------------------------------------------------------------------------------


async def _warm_up(url: str) -> None:
    async with AsyncClient(url, group="bench") as client:
        await loads.prepare_commit(client, 2_000, 100, "bench")


def _transactions(bench: Bench, in_flight: int, broker: LocalBroker) -> Turn:
    async def measure() -> tuple[float, float]:
        async with AsyncClient(broker.url, group="bench") as client:
            return await loads.prepare_commit(client, bench.count(TRANSACTIONS, 1_000), in_flight, "bench")

    before = _counted(broker)
    rate, median = bench.run(measure())
    trips, commits = (after - began for after, began in zip(_counted(broker), before, strict=True))
    return Turn(rate, median, 0.0, trips / max(1, commits))


def _counted(broker: LocalBroker) -> tuple[float, float]:
    """Round trips and group commits of a broker since its start."""
    with urllib.request.urlopen(f"{broker.url}/metrics", timeout=30) as answer:  # noqa: S310 - our own
        told = answer.read().decode()
    trips, commits = (
        sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", told, re.MULTILINE))
        for name in (_TRIPS, _COMMITS)
    )
    return trips, commits


def _calls(bench: Bench, service: TrivialService, broker: LocalBroker) -> Turn:
    rate = bench.run(end_to_end(through_dtm, broker, service, bench.count(CALLED, 500)))
    return Turn(rate, 1 / rate, 0.0)


async def _fill(url: str, messages: int) -> None:
    async with AsyncClient(url, group="bench") as client:
        await loads.fill(client, messages, "reads")


def _fetch(bench: Bench, broker: LocalBroker) -> Turn:
    async def measure() -> float:
        async with AsyncClient(broker.url, group="bench") as client:
            topic = await client.topic("reads")
            return await loads.fetch_all(client, "reads", topic.starts, topic.ends)

    rate = bench.run(measure())
    return Turn(rate, 1 / rate, 0.0)
