"""Walks through a transfer of 30 between two banks, with everything that can go wrong, and draws what happened.

    python examples/cross_bank_transfer/run.py

It needs no broker: it starts its own. The exit code is 0 only if the money is where it must be after every step.
"""

import argparse
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from ledger import Notes, balance, set_up
from picture import draw
from rich.text import Text
from stage import Stage, parser, settle

from tallystick.demo.processes import Crew
from tallystick.demo.verdict import Line
from tallystick.local import LocalBroker, LocalService

HERE = Path(__file__).parent
BEGIN, AMOUNT = 300, 30
SETTLE_SECONDS = 30.0
BROKEN = ("no-branch-barrier", "always-yes")
# Short times, so that what a crash leaves behind is resolved while one looks on.
BROKER = {"check_after": "1s", "check_interval": "500ms", "call_retry_first": "200ms", "call_retry_cap": "1s"}


class Step(NamedTuple):
    """One transfer, what goes wrong in it, and how much moves in the end."""

    title: str
    moves: int
    options: tuple[str, ...] = ()
    amount: int = AMOUNT
    orders: str = ""  # what bank B does wrong: "fail" or "die", one for each call


STEPS = (
    Step("all is well", AMOUNT),
    Step("the account of A has not enough: nothing happens", 0, amount=1_000),
    Step("A dies before its commit: the database rolls back, the check-back finds out", 0, ("--die=before-commit",)),
    Step("A dies after its commit and before submit: the check-back finds out", AMOUNT, ("--die=after-commit",)),
    Step("B refuses twice: it is called until it takes the money", AMOUNT, orders="fail\nfail"),
    Step("B dies with its commit done and its answer not sent: it is called again", AMOUNT, orders="die"),
    Step("A waits until B has it", AMOUNT, ("--wait",)),
    Step("with a transaction block of Tallystick", AMOUNT, ("--way=native", "--wait")),
    Step("with nothing but HTTP and SQL", AMOUNT, ("--way=http",)),
    Step("with nothing but HTTP and SQL, A dies after its commit", AMOUNT, ("--way=http", "--die=after-commit")),
)


class Walk:
    def __init__(self, given: argparse.Namespace, stage: Stage) -> None:
        self.console, self.directory = stage.console, stage.directory
        directory = stage.directory
        self.notes = Notes(directory / "notes.jsonl")
        self.orders = directory / "orders"
        self.a, self.b = directory / "a.db", directory / "b.db"
        self.broker = LocalBroker(directory / "broker", **BROKER)
        careless = ["--without-barrier"] if given.sabotage == "no-branch-barrier" else []
        trusting = ["--always-yes"] if given.sabotage == "always-yes" else []
        self.bank_a = self._service("bank_a", "serve", f"--database={self.a}", *trusting)
        self.bank_b = self._service("bank_b", f"--database={self.b}", f"--orders={self.orders}", *careless)
        self.crew = Crew([self.broker, self.bank_a, self.bank_b])
        self.over = threading.Event()

    def _service(self, name: str, *options: str) -> LocalService:
        command = [sys.executable, str(HERE / f"{name}.py"), *options, "--port={port}", f"--notes={self.notes.path}"]
        return LocalService(name, command, self.directory / f"{name}.log")

    def run(self) -> list[Line]:
        set_up(self.a, "Anna", BEGIN)
        set_up(self.b, "Bert", 0)
        for process in self.crew.processes:
            process.start()
        nurse = threading.Thread(target=self.nurse)
        nurse.start()
        try:
            return self.walk_all()
        finally:
            self.over.set()
            nurse.join()

    def walk_all(self) -> list[Line]:
        moved = 0
        lines = []
        for number, step in enumerate(STEPS, 1):
            moved += step.moves
            lines.append(self.walk(number, step, (BEGIN - moved, moved)))
            if not lines[-1].holds:
                break  # from here on the balances would be wrong for an old reason
        return lines

    def walk(self, number: int, step: Step, wanted: tuple[int, int]) -> Line:
        self.notes.clear()
        self.orders.write_text(step.orders)
        self.console.print(Text(f"\n{number}. {step.title}", style="bold"))
        self.transfer(step)
        left = settle(self.broker.url, SETTLE_SECONDS)
        self.console.print(draw(self.notes.read()), soft_wrap=True, markup=False)
        found = balance(self.a), balance(self.b)
        detail = f"A has {found[0]}, B has {found[1]}"
        if found != wanted:
            detail += f", and should have {wanted[0]} and {wanted[1]}"
        self.console.print(Text(detail, style="green" if found == wanted else "bold red"))
        return Line(step.title, found == wanted and not any(left), detail)

    def transfer(self, step: Step) -> None:
        """In a process of its own, which may die."""
        command = [
            *(sys.executable, str(HERE / "bank_a.py"), "transfer", str(step.amount)),
            *(f"--database={self.a}", f"--notes={self.notes.path}", f"--broker={self.broker.url}"),
            *(f"--to={self.bank_b.url}/TransIn", f"--check={self.bank_a.url}/QueryPrepared", *step.options),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode > 0:
            self.console.print(Text(done.stderr.strip().splitlines()[-1], style="dim"))

    def nurse(self) -> None:
        """Start bank B again when it has died, as whatever runs services does."""
        while not self.over.wait(0.05):
            if not self.bank_b.running:
                self.crew.kill(self.bank_b)  # it is dead already; this counts it and starts the next


def arguments() -> argparse.Namespace:
    return parser("A transfer between two banks, and everything that can go wrong.", BROKEN).parse_args()


def main() -> int:
    given = arguments()
    stage = Stage("banks", given)
    walk = Walk(given, stage)
    try:
        lines = walk.run()
    finally:
        walk.crew.kill_all()
    return stage.conclude("the money is where it must be", lines, [f"{len(lines)} transfers of {AMOUNT}"])


if __name__ == "__main__":
    sys.exit(main())
