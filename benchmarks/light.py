"""What a service carries: how long the client takes to import, and what an environment with it weighs."""

from __future__ import annotations

from statistics import median

from tests.environments import Environment, import_seconds, unpacked_wheel

from benchmarks.report import Figure
from benchmarks.run import Bench

USE = "import tallystick; tallystick.Client('http://127.0.0.1:7440', group='x')"
ROUNDS, LEAST_ROUNDS = 40, 5
MOST_MILLISECONDS, MOST_MEGABYTES = 100, 25


def light(bench: Bench) -> None:
    """Import time beyond the bare interpreter's (the best of many, beside asyncio's), and installed size."""
    installed = unpacked_wheel(bench.directory / "wheel")
    client = Environment(bench.directory / "client", installed)
    client.compile()
    turns = [
        (import_seconds(client.python, "import asyncio"), import_seconds(client.python, USE))
        for _ in range(bench.count(ROUNDS, LEAST_ROUNDS))
    ]
    _, best = (min(times) for times in zip(*turns, strict=True))
    bench.report.add(
        Figure(
            "import and make a client",
            best * 1000,
            "ms",
            target=MOST_MILLISECONDS,
            at_most=True,
            ratio=median(one / asyncio for asyncio, one in turns),
            ratio_of="import asyncio",
        )
    )
    bench.report.add(Figure("installed: the client", client.size() / 1e6, "MB", target=MOST_MEGABYTES, at_most=True))
    for extra, what in (("cli", "the command line"), ("server", "the broker")):
        environment = Environment(bench.directory / extra, installed, [extra])
        environment.compile()
        bench.report.add(Figure(f"installed: {what}, and the client", environment.size() / 1e6, "MB"))
