"""Runs the whole pipeline, kills its processes on the way, and proves that the books are the shop's.

    python examples/spark_pipeline/run.py --kills 8 --seed 1

It needs no broker: it starts its own. The exit code is 0 only if everything is proven.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import books
import shop
from kills import Kill, SparkProcess, last_noted, plan
from proof import Evidence, Line, gather, judge, rows
from rich.console import Console
from show import Picture, Watch, show_verdict

import tallystick
from tallystick.demo.processes import Crew
from tallystick.link import Link
from tallystick.local import LocalBroker, Process, module

HERE = Path(__file__).parent
WINDOW_SECONDS = 2
TICK_SECONDS = 0.1
AIM_SECONDS = 1.0
SETTLE_SECONDS = 10.0
RECONCILE_SECONDS = 300
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for a job of seconds
BROKEN = {"ledger": ("spark", "--without-ledger"), "inbox": ("books", "--without-inbox")}
# Short times, so that what a kill leaves behind is resolved while one looks on.
BROKER = {"check_after": "1s", "check_interval": "500ms", "check_interval_cap": "2s", "redelivery_first": "200ms"}


class Pipeline:
    """The processes, their databases and the kills of one run, in one directory."""

    def __init__(self, given: argparse.Namespace, directory: Path, watch: Watch) -> None:
        self.given, self.watch, self.directory = given, watch, directory
        self.shop, self.books = directory / "shop.db", directory / "books.db"
        self.checkpoint = directory / "checkpoint"
        self.broker = LocalBroker(directory, **BROKER)
        self.crew = Crew([self.broker])
        self.broken = [BROKEN[name] for name in given.sabotage]
        only = tuple(role for role, _ in self.broken)
        self.kills = plan(given.kills, given.seconds, given.seed, only)
        self.results_at_start = 0
        self.repeated = 0  # batches whose results were out when Spark was killed, before it had noted them
        self.progress: tuple[Any, ...] = ()
        self.progressed_at = time.monotonic()

    # --- the run -----------------------------------------------------------------------------------------------

    def run(self) -> tuple[Evidence, list[Line]]:
        self.start()
        began = time.monotonic()
        while not self.look().bookings and self.go_on():
            began = time.monotonic()
        self.watch.say("it works: orders are booked. From now on processes are killed")
        while (self.kills or time.monotonic() < began + self.given.seconds) and self.go_on():
            self.kill_what_is_due(time.monotonic() - began)
        self.close_shop()
        while not self.look().settled and self.go_on():
            pass
        return self.prove()

    def start(self) -> None:
        shop.set_up(str(self.shop))
        books.set_up(str(self.books))
        self.crew.start("broker")
        with Link(self.broker.url) as link:
            link.put("topics", "orders", queues=2)
            link.put("topics", "revenue", queues=2)
        self.add(Process, "shop", "shop.py", self.shop)
        self.add(SparkProcess, "spark", "revenue.py", self.checkpoint, f"--window={WINDOW_SECONDS}")
        self.add(Process, "books", "books.py", self.books)
        self.watch.say("shop, Spark and books are started; Spark takes some time to wake up")

    def add(self, kind: type[Process], role: str, program: str, place: Path, *options: str) -> None:
        wrong = [option for broken, option in self.broken if broken == role]
        command = [sys.executable, str(HERE / program), self.broker.url, str(place), *options, *wrong]
        self.crew.processes.append(kind(role, command, self.directory / f"{role}.log"))
        self.crew.start(role)

    def close_shop(self) -> None:
        """From here on it only sends ticks, which close the last windows, and answers check-backs."""
        (process,) = self.crew.of("shop")
        self.crew.stop("shop")
        process.command.append("--closed")
        process.start()
        self.watch.say("the shop is closed; what is on its way arrives")

    def go_on(self) -> bool:
        """A moment later: everything that should run does, and something has come of it not too long ago."""
        time.sleep(TICK_SECONDS)
        self.crew.revive()
        picture = self.look()
        self.watch.show(picture, self.crew.kills)
        progress = (len(self.kills), picture.bookings, picture.results or 0)
        if progress != self.progress:
            self.progress, self.progressed_at = progress, time.monotonic()
        return time.monotonic() < self.progressed_at + self.given.give_up

    def look(self) -> Picture:
        """How far everything is. A broker that was just killed says nothing."""
        ((sold,),) = rows(self.shop, "select count(*) from orders")
        ((bookings, booked),) = rows(self.books, "select count(*), coalesce(sum(orders), 0) from booking")
        try:
            with Link(self.broker.url, timeout=2) as link:
                batch = (last_batch(link) or {}).get("version")
                seen = (topic_end(link, "orders"), batch, topic_end(link, "revenue"), pending(link))
        except tallystick.TallystickError:
            seen = (None, None, None, None)
        return Picture(sold, *seen, bookings, booked)

    # --- the kills ---------------------------------------------------------------------------------------------

    def kill_what_is_due(self, now: float) -> None:
        for kill in self.kills:
            if kill.at <= now and self.ready(kill) and (not kill.aimed or self.has_just_acted(kill.role)):
                self.kills.remove(kill)
                self.carry_out(kill)
                return

    def ready(self, kill: Kill) -> bool:
        """Spark is killed at work, not while it starts: that would show nothing."""
        return kill.role != "spark" or (self.look().results or 0) > self.results_at_start

    def has_just_acted(self, role: str) -> bool:
        """Wait a moment for a result of Spark to become visible, or for the books to commit one."""
        if role == "books":
            before = self.look().bookings
            return any(self.look_at_books() > before for _ in range(int(AIM_SECONDS / 0.005)))
        try:
            with Link(self.broker.url, timeout=AIM_SECONDS + 2) as link:
                seen = link.get("topics", names="revenue")
                wait_ms = int(AIM_SECONDS * 1000)
                return link.get("topics", names="revenue", position=seen["position"], wait_ms=wait_ms) != seen
        except tallystick.TallystickError:
            return False

    def look_at_books(self) -> int:
        time.sleep(0.005)
        ((bookings,),) = rows(self.books, "select count(*) from booking")
        return int(bookings)

    def carry_out(self, kill: Kill) -> None:
        time.sleep(0 if kill.aimed else kill.delay)
        (process,) = self.crew.of(kill.role)
        process.kill()
        remark = self.spark_was_killed() if kill.role == "spark" else ""
        self.crew.kill(process)  # it is dead already; this counts it and starts the next
        self.watch.say(
            f"kill -9 {kill.role}, {'right after it had acted' if kill.aimed else 'at a random moment'}{remark}"
        )

    def spark_was_killed(self) -> str:
        """Did it leave a batch that the broker has and Spark does not know of?"""
        with Link(self.broker.url, patience=30) as link:
            last = last_batch(link)
            self.results_at_start = topic_end(link, "revenue")
        if last is None or not last["messages"] or last["version"] <= last_noted(self.checkpoint):
            return ""
        self.repeated += 1
        if self.broken:  # what was to be broken is broken
            self.kills = [left for left in self.kills if left.role != "spark"]
        return f": the results of batch {last['version']} were out, and Spark had not noted it"

    # --- the proof ---------------------------------------------------------------------------------------------

    def prove(self) -> tuple[Evidence, list[Line]]:
        self.watch.say("comparing the shop's database, both topics and the books")
        self.crew.of("spark")[0].kill()
        with tallystick.Client(self.broker.url) as ts, Link(self.broker.url, patience=30) as link:
            self.wait_until(lambda: not lag(link, "books"))
            self.crew.stop("shop", "books")
            self.wait_until(lambda: not pending(link))
            found = gather(ts, self.shop, self.books, WINDOW_SECONDS * 1000)
            found = found._replace(pending=pending(link), ended=self.crew.failures.total())
        if self.given.no_reconcile:
            return found, judge(found)
        self.watch.say("the same judged by tallystick spark reconcile")
        return found, [*judge(found), self.reconcile()]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """For a while. If it does not come true, the proof will tell."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while not condition() and time.monotonic() < deadline:
            time.sleep(TICK_SECONDS)

    def reconcile(self) -> Line:
        """Both ends in one go: the shop's database against topic orders, topic revenue against the books."""
        options = [
            f"--url={self.broker.url}",
            f"--producer=sqlite://{self.shop}",
            "--producer-group=shop",
            "--transactional=orders",
            f"--consumer=books=sqlite://{self.books}",
            "--effects=books=booking.message_id",
            "--grace=0s",
            "--master=local[2]",
        ]
        command = module("tallystick", "spark", "reconcile", *options)
        environment = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
        done = subprocess.run(command, capture_output=True, text=True, timeout=RECONCILE_SECONDS, env=environment)
        (self.directory / "reconcile.log").write_text(done.stdout + done.stderr)
        said = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[-1]
        return Line("tallystick spark reconcile finds nothing wrong", done.returncode == 0, said)


def topic_end(link: Link, topic: str) -> int:
    return sum(link.get("topics", topic)["ends"])


def last_batch(link: Link) -> dict[str, Any] | None:
    """The last batch of Spark that the broker has, by its ledger."""
    return max(link.get("ledger")["apps"], key=lambda app: app["committed_at"], default=None)


def pending(link: Link) -> int:
    """Transactions without an outcome."""
    return len(link.get("transactions", state="prepared")["transactions"])


def lag(link: Link, group: str) -> int:
    """Messages that a group has not settled yet."""
    return sum(view.get("lag", 0) for view in link.get("groups", group)["groups"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A pipeline that is killed on the way, and the proof that it is right."
    )
    parser.add_argument("--seconds", type=float, default=30, help="time over which the kills are spread")
    parser.add_argument("--kills", type=int, default=8, help="how many processes are killed")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="for the same kills again")  # noqa: S311
    parser.add_argument(
        "--give-up", type=float, default=300, help="seconds without any progress after which it is not waited"
    )
    parser.add_argument("--sabotage", action="append", choices=sorted(BROKEN), default=[], help="break it on purpose")
    parser.add_argument("--no-reconcile", action="store_true", help="leave out the second judge, which takes a while")
    parser.add_argument("--keep", action="store_true", help="keep databases and logs")
    parser.add_argument("--json", action="store_true", help="print the verdict for programs")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    console = Console(stderr=given.json, highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="tallystick-pipeline-"))
    console.print(f"seed {given.seed}; working in {directory}")
    with Watch(console) as watch:
        pipeline = Pipeline(given, directory, watch)
        try:
            found, lines = pipeline.run()
        finally:
            pipeline.crew.kill_all()
    proven = all(line.holds for line in lines)
    show_verdict(console, found, lines, pipeline.crew.kills, pipeline.repeated)
    if proven and not given.keep:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        console.print(f"databases and logs are kept in {directory}")
    if given.json:
        report = {
            "proven": proven,
            "kills": pipeline.crew.kills,
            "repeated": pipeline.repeated,
            "orders": len(found.sold),
        }
        print(json.dumps({**report, "claims": [line._asdict() for line in lines]}))
    return 0 if proven else 1


if __name__ == "__main__":
    sys.exit(main())
