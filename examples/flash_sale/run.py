"""Runs a flash sale, kills its processes on the way, and proves that orders and deductions are the same.

    python examples/flash_sale/run.py --users 800 --stock 400 --kills 12 --seed 1

It needs `redis-server` and no broker: it starts its own. The exit code is 0 only if everything is proven.
"""

import argparse
import asyncio
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import redis
from crowd import Crowd
from kills import Kill, carry_out, plan
from proof import Evidence, Sale, judge
from rich.table import Table
from sabotage import VARIANTS
from stage import Stage, parser, settle, survived
from stage.redis_server import LocalRedis
from stage.traps import Traps
from stock import gid_of, gid_of_mark, mark_key, stock_key

from tallystick.demo.processes import Crew
from tallystick.local import LocalBroker, LocalService

HERE = Path(__file__).parent
SALE, LAST_UNIT = "shoes", "last"
CROWD = 32  # users at a time
SETTLE_SECONDS = 60.0
BROKEN = (*sorted(name for name in VARIANTS if name), "no-branch-barrier")
# Short times, so that what a kill leaves behind is resolved while one looks on.
BROKER = {"check_interval": "500ms", "check_interval_cap": "2s", "call_retry_first": "200ms", "call_retry_cap": "2s"}


class FlashSale:
    """The processes, their databases and the kills of one run, in one directory."""

    def __init__(self, given: argparse.Namespace, stage: Stage) -> None:
        self.given, self.say = given, stage.say
        directory = stage.directory
        self.traps = Traps(directory / "traps")
        self.database = directory / "orders.db"
        self.broker = LocalBroker(directory / "broker", **BROKER)
        self.redis = LocalRedis(directory / "redis")
        self.crew = Crew([self.redis, self.broker])
        orders = self._service(directory, "orders", f"--database={self.database}", *self._broken_orders())
        shop = self._service(
            directory,
            "shop",
            f"--broker={self.broker.url}",
            f"--redis-port={self.redis.port}",
            f"--orders={orders.url}/orders",
            f"--check-after={given.check_after}",
            *([f"--sabotage={given.sabotage}"] if given.sabotage in VARIANTS else []),
        )
        self.crowd = Crowd(shop.url, given.seed)
        self.store = redis.Redis(port=self.redis.port, decode_responses=True)

    def _service(self, directory: Path, role: str, *options: str) -> LocalService:
        traps = f"--traps={directory / 'traps'}"
        command = [sys.executable, str(HERE / f"{role}.py"), "--port={port}", traps, *options]
        service = LocalService(role, command, directory / f"{role}.log")
        self.crew.processes.append(service)
        return service

    def _broken_orders(self) -> list[str]:
        return ["--without-barrier"] if self.given.sabotage == "no-branch-barrier" else []

    # --- the run -----------------------------------------------------------------------------------------------

    async def run(self) -> Evidence:
        for process in self.crew.processes:
            process.start()
        self.store.mset({stock_key(SALE): self.given.stock, stock_key(LAST_UNIT): 1})
        self.say("the shop is open")
        users = [f"user{number}" for number in range(self.given.users)]
        buyers = users[: self.given.stock]  # as many as there are units: all the time something can go wrong
        kills = plan(self.given.kills, self.given.seed)
        for number, kill in enumerate(kills):
            await asyncio.gather(self.crowd.rush(SALE, buyers[number :: len(kills)], CROWD), self.kill(kill))
        await self.crowd.rush(SALE, users if not kills else users[self.given.stock :], CROWD)
        await self.sell_the_last_unit()
        self.say("everybody has an answer; what is on its way arrives")
        return await asyncio.to_thread(self.gather)

    async def kill(self, kill: Kill) -> None:
        if done := await asyncio.to_thread(carry_out, kill, self.crew, self.traps):
            self.say(done)

    async def sell_the_last_unit(self) -> None:
        """Whoever takes the last unit asks again, because the shop died before it could answer. A second user comes too
        late. Both must be told the truth."""
        await asyncio.gather(self.crowd.rush(LAST_UNIT, ["first"], 1), self.kill(Kill("shop", "after-deduction")))
        self.say("the one who took the last unit asked again")
        await self.crowd.rush(LAST_UNIT, ["second"], 1)

    # --- the evidence ------------------------------------------------------------------------------------------

    def gather(self) -> Evidence:
        left = settle(self.broker.url, SETTLE_SECONDS)
        return Evidence([self.sale(SALE, self.given.stock), self.sale(LAST_UNIT, 1)], left)

    def sale(self, activity: str, stock: int) -> Sale:
        with closing(sqlite3.connect(self.database)) as conn:
            orders = [gid for (gid,) in conn.execute("select gid from orders where activity = ?", (activity,))]
        return Sale(
            activity,
            stock,
            self.left(activity),
            self.deductions(activity),
            orders,
            self.crowd.accepted.get(activity, set()),
            self.crowd.sold_out.get(activity, set()),
        )

    def left(self, activity: str) -> int:
        while True:
            try:
                return int(self.store.get(stock_key(activity)) or 0)
            except redis.RedisError:
                time.sleep(0.05)  # it was just killed

    def deductions(self, activity: str) -> set[str]:
        """The gids whose mark is in Redis: set by the script that took the unit, and by nothing else."""
        keys = list(self.store.scan_iter(mark_key(gid_of(activity, "*")), count=1_000))
        marks = self.store.mget(keys) if keys else []
        return {gid_of_mark(key) for key, mark in zip(keys, marks, strict=True) if mark not in (None, "rollback")}


def table_of(found: Evidence) -> Table:
    table = Table("activity", box=None)
    for column in ("stock", "left", "accepted", "sold out", "deductions", "orders", "differences"):
        table.add_column(column, justify="right")
    for one in found.sales:
        numbers = one.stock, one.left, len(one.accepted), len(one.sold_out), len(one.deductions), len(one.orders)
        different = len(one.deductions ^ set(one.orders))
        table.add_row(one.activity, *(f"{number:,}" for number in numbers), f"{different:,}" if different else "none")
    return table


def arguments() -> argparse.Namespace:
    options = parser("A flash sale that is killed on the way, and the proof that it is right.", BROKEN)
    options.add_argument("--users", type=int, default=800)
    options.add_argument("--stock", type=int, default=400)
    options.add_argument("--kills", type=int, default=16, help="how many processes are killed")
    options.add_argument("--check-after", type=float, default=3.0, help="seconds before the broker asks")
    return options.parse_args()


def main() -> int:
    given = arguments()
    stage = Stage("flash-sale", given)
    stage.say(f"seed {given.seed}; working in {stage.directory}")
    sale = FlashSale(given, stage)
    try:
        found = asyncio.run(sale.run())
    finally:
        sale.crew.kill_all()
        sale.store.close()
    stage.console.print(table_of(found))
    facts = [f"{sale.crowd.requests:,} requests; {survived(sale.crew)}"]
    orders = {one.activity: len(one.orders) for one in found.sales}
    return stage.conclude(
        "orders and deductions are the same", judge(found), facts, kills=sale.crew.kills, orders=orders
    )


if __name__ == "__main__":
    sys.exit(main())
