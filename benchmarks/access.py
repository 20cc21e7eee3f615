"""What it costs to know who asks: transactions with access control off and with a token, by turns."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import loads
from benchmarks.processes import processor_seconds
from benchmarks.report import Figure
from benchmarks.rounds import Round, Turn, by_turns
from tallystick import AsyncClient
from tallystick.core.tokens import new_token
from tallystick.local import LocalBroker

if TYPE_CHECKING:
    from benchmarks.run import Bench

IN_FLIGHT, ROUNDS = 1_000, 7
LEAST_RATIO = 0.97  # the goal: at most 3 % slower


def access(bench: Bench) -> None:
    """prepare + commit with a token for one topic and one group, as a service has it."""
    text, name, digest = new_token()
    file = bench.directory / "access.toml"
    file.write_text(
        f'auth = "tokens"\n[[static_tokens]]\nname = "bench"\nid = "{name}"\ntoken_sha256 = "{digest}"\n'
        'roles = ["producer"]\ntopics = ["bench"]\ngroups = ["bench"]\n'
    )
    count = bench.count(30_000, 3_000)
    with bench.broker("access-off") as unlocked, _Locked(bench.directory / "access-on", file) as locked:

        def measured(broker: LocalBroker, token: str | None) -> Turn:
            turn: Turn = bench.run(_turn(broker, token, count))
            return turn

        ways = {"off": partial(measured, unlocked, None), "token": partial(measured, locked, text)}
        by_turns(ways, 1)  # both have seen work before it counts
        rounds = by_turns(ways, ROUNDS)
    for way in ways:
        rate = rounds.median(partial(_rate, way))
        bench.report.add(Figure(f"access: {way}, {IN_FLIGHT:,} in flight", rate, "tx/s"))
    ratio = rounds.median(lambda turns: turns["token"].rate / turns["off"].rate)
    bench.report.add(Figure("access: rate with a token / without", ratio, "x", LEAST_RATIO))
    more = rounds.median(lambda turns: turns["token"].broker - turns["off"].broker)
    bench.report.add(Figure("access: broker's time for a transaction more", more * 1e6, "us"))


def _rate(way: str, turns: Round) -> float:
    return turns[way].rate


class _Locked(LocalBroker):
    """One whose settings are in a file, which alone can hold tokens."""

    def __init__(self, directory: Path, file: Path) -> None:
        super().__init__(directory, min_free_bytes=0, log_level="warning")
        self.command = [*self.command, "--config", str(file)]


async def _turn(broker: LocalBroker, token: str | None, count: int) -> Turn:
    known: dict[str, Any] = {} if token is None else {"token": token}
    async with AsyncClient(broker.url, group="bench", **known) as client:
        used, began = processor_seconds(broker.pid), time.process_time()
        rate, one = await loads.prepare_commit(client, count, IN_FLIGHT, "bench")
        took = (processor_seconds(broker.pid) - used) / count
        return Turn(rate, one, (time.process_time() - began) / count, broker=took)
