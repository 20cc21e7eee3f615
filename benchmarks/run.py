"""Runs the benchmarks one after another, each on a broker of its own."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import loads
from benchmarks.access import access
from benchmarks.blocks import blocks
from benchmarks.broker_time import broker_time
from benchmarks.calls import calls, recovery
from benchmarks.consumers import consumers
from benchmarks.processes import resident_mb
from benchmarks.report import Figure, Report
from tallystick import AsyncClient
from tallystick.cli.doctor.disk import bare_fdatasync
from tallystick.local import LocalBroker

Section = Callable[["Bench"], None]


class Bench:
    """What every section needs. `scale` shortens the long ones for a quick look."""

    def __init__(self, directory: Path, report: Report, scale: float, postgresql: str | None) -> None:
        self.directory, self.report, self.scale, self.postgresql = directory, report, scale, postgresql
        self.fdatasync = 0.0

    def count(self, full: int, least: int = 1_000) -> int:
        return max(least, int(full * self.scale))

    def broker(self, name: str, **settings: object) -> LocalBroker:
        return LocalBroker(self.directory / name, min_free_bytes=0, log_level="warning", **settings)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        import uvloop

        return uvloop.run(work)


def disk(bench: Bench) -> None:
    bench.fdatasync = bare_fdatasync(bench.directory)
    bench.report.add(Figure("bare write + fdatasync, 1 KiB", 1 / bench.fdatasync, "/s"))


def transactions(bench: Bench) -> None:
    """prepare + commit, both durable, from one client process."""
    bare = 1 / bench.fdatasync

    async def measure(url: str) -> None:
        async with AsyncClient(url, group="bench") as client:
            await loads.prepare_commit(client, 2_000, 100, "bench")
            _, one = await loads.prepare_commit(client, bench.count(1_000, 200), 1, "bench")
            limit = 2 * bench.fdatasync + 0.0015
            bench.report.add(
                Figure(
                    "prepare + commit, 1 in flight, median",
                    one * 1e3,
                    "ms",
                    limit * 1e3,
                    True,
                    one / bench.fdatasync,
                    "one fdatasync",
                )
            )
            for in_flight, target, full in ((64, 12_000, 60_000), (1_000, 30_000, 150_000)):
                rate, _ = await loads.prepare_commit(client, bench.count(full, 5_000), in_flight, "bench")
                bench.report.add(
                    Figure(
                        f"prepare + commit, {in_flight} in flight",
                        rate,
                        "tx/s",
                        target,
                        ratio=rate / bare,
                        ratio_of="fdatasyncs/s",
                    )
                )

    with bench.broker("transactions") as broker:
        bench.run(measure(broker.url))


def reading(bench: Bench) -> None:
    messages = bench.count(400_000, 20_000)

    async def measure(url: str) -> None:
        async with AsyncClient(url, group="bench") as client:
            took = await loads.fill(client, messages, "reads")
            bench.report.add(Figure("send, 500 messages a request", messages / took, "messages/s"))
            topic = await client.topic("reads")
            rate = await loads.fetch_all(client, "reads", [0] * len(topic.ends), topic.ends)
            bench.report.add(Figure("fetch by offset", rate, "messages/s", 150_000))
            rate = await loads.arrow_read(url, "reads", topic.ends)
            bench.report.add(Figure("Arrow bulk read", rate, "messages/s", 300_000))
            rate = await loads.receive_ack(client, "reads", "bench-readers", bench.count(60_000, 5_000))
            bench.report.add(Figure("receive + ack", rate, "messages/s", 10_000))

    with bench.broker("reading") as broker:
        bench.run(measure(broker.url))


def pending(bench: Bench) -> None:
    """A million half messages: memory, the cost of a check round, and a restart after kill -9."""
    many, committed = bench.count(1_000_000, 20_000), bench.count(2_000_000, 20_000)
    rounds = {}
    for name, halves in (("few", 1_000), ("many", many)):
        # Nobody polls for this group, so nothing is claimed before we ask.
        broker = bench.broker(f"pending-{name}", check_after="1h", max_pending_age="3d")
        broker.start()
        try:
            bench.run(_prepare_halves(broker.url, halves))
            rounds[name] = bench.run(_check_round(broker.url))
            if name == "many":
                _memory_and_restart(bench, broker, halves, committed)
        finally:
            broker.kill()
    bench.report.add(
        Figure(
            f"check round, 100 due of {many:,} pending",
            rounds["many"] * 1e3,
            "ms",
            2 * rounds["few"] * 1e3,
            True,
            rounds["many"] / rounds["few"],
            "the round with 1,000 pending",
        )
    )


async def _prepare_halves(url: str, halves: int) -> None:
    async with AsyncClient(url, group="waiting") as client:
        await loads.prepare_only(client, halves, "halves", check_after=3600)


async def _check_round(url: str) -> float:
    """The median time from a group's poll to the 100 checks that are due for it."""
    times = []
    async with AsyncClient(url, group="due") as client:
        for turn in range(7):
            group = f"due-{turn}"
            async with AsyncClient(url, group=group) as producer:
                await asyncio.gather(*(_prepare_due(producer, f"{group}-{number}") for number in range(100)))
            began = time.perf_counter()
            found = await client.poll_checks(group, max=100, wait=10)
            times.append(time.perf_counter() - began)
            await client.answer_checks(dict.fromkeys((check.gid for check in found), "rolled_back"))
    return sorted(times)[len(times) // 2]


async def _prepare_due(client: AsyncClient, gid: str) -> None:
    await client.prepare(gid, [loads.message("halves", gid)], check_after=0)


def _memory_and_restart(bench: Bench, broker: LocalBroker, halves: int, committed: int) -> None:
    resident = resident_mb(broker.pid)
    bench.report.add(Figure(f"broker's memory with {halves:,} pending", resident, "MB", 600, True))

    async def fill(url: str) -> None:
        async with AsyncClient(url, group="bench") as client:
            await loads.fill(client, committed, "committed")

    bench.run(fill(broker.url))
    broker.kill()
    began = time.perf_counter()
    broker.start()
    took = time.perf_counter() - began
    name = f"ready after kill -9, {halves:,} pending, {committed:,} messages"
    bench.report.add(Figure(name, took, "s", 3.0, True))


def growth(bench: Bench) -> None:
    """Commit and fetch cost with little and with much stored."""
    large = bench.count(5_000_000, 50_000)

    async def measure(url: str) -> dict[str, tuple[float, float]]:
        found: dict[str, tuple[float, float]] = {}
        async with AsyncClient(url, group="bench") as client:
            for name, stored in (("small", 10_000), ("large", large)):
                await loads.fill(client, stored, "growing")
                rate, _ = await loads.prepare_commit(client, bench.count(60_000, 5_000), 1_000, "growing")
                ends = (await client.topic("growing")).ends
                last = [max(0, end - 25_000) for end in ends]
                found[name] = rate, await loads.fetch_all(client, "growing", last, ends)
        return found

    with bench.broker("growth", retention="30d") as broker:
        found = bench.run(measure(broker.url))
    for index, what in enumerate(("commit", "fetch")):
        ratio = found["small"][index] / found["large"][index]
        name = f"{what} cost at {large:,} stored / at 10,000"
        bench.report.add(Figure(name, ratio, "x", 1.5, True))


SECTIONS: dict[str, Section] = {
    "disk": disk,
    "transactions": transactions,
    "broker-time": broker_time,
    "access": access,
    "reading": reading,
    "blocks": blocks,
    "calls": calls,
    "recovery": recovery,
    "consumers": consumers,
    "pending": pending,
    "growth": growth,
}


def run(sections: Mapping[str, Section], scale: float, postgresql: str | None, console: Console) -> Report:
    """Run the sections; the disk comes first, everything is measured against it."""
    report = Report(lambda line: console.print(f"  {line}", highlight=False))
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as directory:
        bench = Bench(Path(directory), report, scale, postgresql)
        for name, section in {"disk": disk, **sections}.items():
            console.print(f"[bold]{name}[/]: {(section.__doc__ or '').partition(chr(10))[0]}")
            section(bench)
    report.show(console)
    return report
