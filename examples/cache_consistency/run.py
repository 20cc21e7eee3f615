"""Brings about the races that leave old values in a cache, and shows that none survives.

    python examples/cache_consistency/run.py --seconds 8 --kills 6 --seed 1

It needs `redis-server` and no broker: it starts its own. The exit code is 0 only if everything is proven.
"""

import argparse
import logging
import random
import sys
import time
from pathlib import Path

from catalogue import Catalogue, Row, cache_key, set_up
from races import crash_after_commit, slow_reader
from service import SABOTAGE, opened_catalogue
from stage import Stage, nothing_wrong, parser, settle, survived
from stage.redis_server import LocalRedis
from stage.traps import Traps
from traffic import Traffic

from tallystick.demo.processes import Crew
from tallystick.demo.verdict import Line
from tallystick.local import LocalBroker, LocalService

HERE = Path(__file__).parent
PRODUCTS = 20
SETTLE_SECONDS = 30.0
# Short times, so that what a kill leaves behind is resolved while one looks on.
BROKER = {
    "check_after": "1s",
    "check_interval": "500ms",
    "check_interval_cap": "2s",
    "call_retry_first": "200ms",
    "call_retry_cap": "1s",
}


class Run:
    """The processes, their databases and the kills of one run, in one directory."""

    def __init__(self, given: argparse.Namespace, stage: Stage) -> None:
        self.given, self.say = given, stage.say
        directory = stage.directory
        self.database = directory / "products.db"
        self.traps = Traps(directory / "traps")
        self.broker = LocalBroker(directory / "broker", **BROKER)
        # A cache that comes back empty is right. One that came back with what it knew a second ago might not be.
        self.redis = LocalRedis(directory / "redis", appendonly="no")
        options = [f"--broker={self.broker.url}", f"--redis-port={self.redis.port}", f"--database={self.database}"]
        options += [f"--traps={directory / 'traps'}", *([f"--sabotage={given.sabotage}"] if given.sabotage else [])]
        command = [sys.executable, str(HERE / "service.py"), "--port={port}", *options]
        self.service = LocalService("service", command, directory / "service.log")
        self.crew = Crew([self.redis, self.broker, self.service])
        self.facts: list[str] = []

    def run(self) -> list[Line]:
        set_up(self.database, PRODUCTS)
        for process in self.crew.processes:
            process.start()
        delete_url = f"{self.service.url}/cache/delete"
        opening = opened_catalogue(
            self.database, self.redis.port, self.broker.url, delete_url, sabotage=self.given.sabotage
        )
        with opening as catalogue:
            return [self.race(catalogue), self.crash(catalogue), *self.rush(catalogue)]

    def race(self, catalogue: Catalogue) -> Line:
        self.say("a reader reads a row and is slow; the row changes; the reader writes what it has read into the cache")
        told, true = slow_reader(catalogue, 0)
        return Line("a slow reader leaves no old value", told == true, compared(told, true))

    def crash(self, catalogue: Catalogue) -> Line:
        self.say("the service changes a row, commits and is killed before anybody was told to delete the copy")
        patience = self.given.patience
        told, true, took = crash_after_commit(self.service.url, catalogue, 1, self.crew, self.traps, patience)
        detail = f"{compared(told, true)}, after {took:.1f} s"
        return Line("a crash between commit and deletion leaves no old value", told == true, detail)

    def rush(self, catalogue: Catalogue) -> list[Line]:
        self.say("readers and writers, and whoever is in the way is killed")
        traffic = Traffic(self.service.url, range(2, PRODUCTS), self.given.seed)
        traffic.start()
        try:
            self.kill_on_the_way()
        finally:
            traffic.stop()
        left = settle(self.broker.url, SETTLE_SECONDS)
        old = [cache_key(product) for product in range(2, PRODUCTS) if self.is_old(catalogue, product)]
        self.facts += [f"{traffic.reads:,} strong reads, {traffic.writes:,} confirmed changes", survived(self.crew)]
        return [
            nothing_wrong("no strong read is older than a confirmed change", traffic.stale),
            nothing_wrong("no old value is left in the cache", old),
            *left.lines(),
            Line("there was something to show", traffic.reads > 0 < traffic.writes, ""),
        ]

    def kill_on_the_way(self) -> None:
        chance = random.Random(self.given.seed)  # noqa: S311 - it must be repeatable, not unguessable
        pause = self.given.seconds / (self.given.kills + 1)
        victims = ["after-commit", "service", "broker", "redis"] * self.given.kills
        for victim in victims[: self.given.kills]:
            time.sleep(pause * chance.uniform(0.5, 1.5))
            if victim == "after-commit":
                self.traps.catch(self.crew, self.service, victim)
                self.say("kill -9 service, after its commit")
            else:
                self.crew.kill(*self.crew.of(victim))
                self.say(f"kill -9 {victim}")
        time.sleep(pause)

    def is_old(self, catalogue: Catalogue, product: int) -> bool:
        copy = catalogue.cache.peek(cache_key(product))
        return copy is not None and copy != catalogue.load(product)


def compared(told: Row, true: Row) -> str:
    return f"the cache says version {told['version']}, the database {true['version']}"


def arguments() -> argparse.Namespace:
    options = parser("A cache that is killed on the way, and the proof that it is right.", SABOTAGE)
    options.add_argument("--seconds", type=float, default=10, help="time over which the kills are spread")
    options.add_argument("--kills", type=int, default=8, help="how many processes are killed")
    options.add_argument("--patience", type=float, default=20, help="seconds until an old value counts as left behind")
    return options.parse_args()


def main() -> int:
    given = arguments()
    logging.getLogger("tallystick").setLevel(logging.ERROR)  # that a killed broker is away is no news here
    stage = Stage("cache", given)
    stage.say(f"seed {given.seed}; working in {stage.directory}")
    run = Run(given, stage)
    try:
        lines = run.run()
    finally:
        run.crew.kill_all()
    return stage.conclude("no old value survives", lines, run.facts, kills=run.crew.kills)


if __name__ == "__main__":
    sys.exit(main())
