"""`tallystick chaos`."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from tallystick.chaos.display import ChaosDisplay, blows_text
from tallystick.chaos.engines import check_store
from tallystick.chaos.modes import MODES, PROMISES, Mode
from tallystick.chaos.own_servers import OWN
from tallystick.chaos.run import ROCKSDB, ChaosOptions, ModeResult, Run
from tallystick.chaos.schedule import Sizes
from tallystick.chaos.worker import Sabotage
from tallystick.cli.options import Json
from tallystick.cli.output import print_json
from tallystick.core.errors import InvalidRequest
from tallystick.demo.display import verdict_panel
from tallystick.extras import need

Chosen = Literal["all", "level-0", "level-1", "level-2", "check-back", "outbox", "consumer-dedup"]

_MODE = "How messages are sent: a level of `send`, a mode of `transaction`, or all of them one after the other."
_ROUNDS = "Rounds; the first strikes one node of each kind, the second two, and so on."
_MESSAGES = "End after so many pieces of work of each producer; 0 for as many as the rounds take."
_STORE = (
    "rocksdb: each broker has a store of its own. postgresql, mysql (MariaDB), redis: the brokers are a cluster on a "
    "server of the run's own, which is killed, too. postgresql://..., mysql://..., redis://...: a cluster in an empty "
    "database."
)
_DIRECTORY = "Where databases and logs are; a new one if not given."


def add(app: typer.Typer) -> None:
    app.command(
        "chaos",
        help="Producers, brokers and consumers that are killed, paused and cut off; then the sets are compared.",
    )(chaos)


def chaos(
    mode: Annotated[Chosen, typer.Option("--mode", help=_MODE)] = "check-back",
    producers: Annotated[int, typer.Option("--producers", min=1, help="Producers, each with a database.")] = 4,
    brokers: Annotated[int, typer.Option("--brokers", min=1, help="Brokers.")] = 2,
    consumers: Annotated[int, typer.Option("--consumers", min=1, help="Consumers, each with a database.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help=_ROUNDS)] = 4,
    seconds: Annotated[float, typer.Option("--seconds", min=0.5, help="How long a round strikes.")] = 8.0,
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Pieces of work a second and producer.")] = 50.0,
    messages: Annotated[int, typer.Option("--messages", min=0, help=_MESSAGES)] = 0,
    seed: Annotated[int | None, typer.Option("--seed", help="For the same schedule again.")] = None,
    directory: Annotated[Path | None, typer.Option("--directory", metavar="DIR", help=_DIRECTORY)] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep databases and logs.")] = False,
    store: Annotated[str, typer.Option("--store", metavar="ENGINE", help=_STORE)] = ROCKSDB,
    stores: Annotated[int, typer.Option("--stores", min=1, max=64, help="Stores of the cluster.")] = 4,
    sabotage: Annotated[Sabotage, typer.Option("--sabotage", hidden=True)] = "",
    as_json: Json = False,
) -> None:
    need("server")
    chosen = random.randrange(1_000_000) if seed is None else seed  # noqa: S311 - shown, so that it can be given again
    if store != ROCKSDB:
        check_store(store)
    if mode == "all" and "://" in store:
        raise InvalidRequest("--mode: one mode for each empty database that --store names", field="--mode")
    sizes = Sizes(producers, brokers, consumers, engine=int(store in OWN))
    options = ChaosOptions(sizes, rounds, seconds, rate, messages, chosen, sabotage, store, stores)
    console = Console(stderr=as_json, highlight=False)
    work = _Place(directory, keep, console)
    console.print(f"seed {chosen}; working in {work.directory}", soft_wrap=True)
    results: list[ModeResult] = []
    try:
        for one in MODES if mode == "all" else (mode,):
            results.append(_run(options, one, work, console))
            if results[-1].interrupted:
                break
        work.settled = all(result.passed for result in results)
    except InvalidRequest:
        work.settled = True  # it was refused before anything was begun
        raise
    except KeyboardInterrupt:
        console.print(f"stopped; {one} was not judged")
        raise typer.Exit(1) from None
    finally:
        work.leave()
    if as_json:
        print_json(_as_data(options, results, work))
    if not all(result.passed for result in results):
        raise typer.Exit(1)


class _Place:
    """The directory of a run: kept if somebody asked for it, or has reason to look into it."""

    def __init__(self, directory: Path | None, keep: bool, console: Console) -> None:
        self._keep, self._console = keep, console
        if directory is not None and directory.exists() and any(directory.iterdir()):
            raise InvalidRequest(f"--directory: {directory} is not empty", field="--directory")
        self._found = directory is not None and directory.exists()
        self.directory = directory or Path(tempfile.mkdtemp(prefix="tallystick-chaos-"))
        self.settled = False  # nobody has reason to look into it
        self.kept = True

    def leave(self) -> None:
        self.kept = self._keep or not self.settled
        if self.kept:
            self._console.print(f"databases, journals and logs are kept in {self.directory}", soft_wrap=True)
            return
        for one in [*self.directory.iterdir()] if self._found else [self.directory]:
            shutil.rmtree(one, ignore_errors=True)


def _run(options: ChaosOptions, mode: Mode, work: _Place, console: Console) -> ModeResult:
    result = Run(options, mode, work.directory / mode, ChaosDisplay(console)).run()
    broken = [line for look in result.rounds for line in look.lines if not line.holds]
    title = f"{mode}: {PROMISES[mode].text}"
    console.print(verdict_panel(title, [*broken, *result.lines], _facts(options, result)))
    return result


def _facts(options: ChaosOptions, result: ModeResult) -> list[str]:
    counts = result.counts
    struck = {(role, blow): times for role, blows in counts.struck.items() for blow, times in blows.items()}
    by_check = counts.resolved_by_check
    facts = [
        f"{counts.committed:,} committed and {counts.consumed:,} consumed in {result.seconds:.0f} s",
        f"survived {blows_text(struck)} in {len(result.rounds)} rounds",
        f"a broker took at most {counts.slowest_broker_start:.1f} s to start again",
        f"{counts.duplicates_dropped:,} duplicates dropped by consumers, at least",
    ]
    if options.shared:
        facts.insert(2, f"stores went to another broker, or another life of the same, {counts.takeovers} times")
    if result.mode == "check-back":
        told = f"{by_check.get('committed', 0)} as committed, {by_check.get('rolled_back', 0)} as rolled back"
        facts.append(f"the check-back resolved {sum(by_check.values())}: {told}")
    if result.mode in ("outbox", "consumer-dedup"):
        facts.append(f"{counts.redriven:,} rows re-driven from outboxes")
    if result.mode != "level-0":  # which is told nothing
        facts.insert(2, f"a running producer got nothing through for at most {counts.longest_unavailable:.1f} s")
    if counts.sent_again:
        facts.append(f"{counts.sent_again:,} sent again")
    return [*facts, f"again: tallystick chaos --mode {result.mode} {_again(options)}"]


def _again(options: ChaosOptions) -> str:
    """The options that repeat the schedule."""
    sizes, defaults = options.sizes, ChaosOptions()
    engine, address, _ = options.store.partition("://")
    given = {
        "producers": (sizes.producer, defaults.sizes.producer),
        "brokers": (sizes.broker, defaults.sizes.broker),
        "consumers": (sizes.consumer, defaults.sizes.consumer),
        "rounds": (options.rounds, defaults.rounds),
        "seconds": (options.seconds, defaults.seconds),
        "rate": (options.rate, defaults.rate),
        "messages": (options.messages, defaults.messages),
        "store": (f"{engine}://..." if address else engine, defaults.store),  # without the password
        "stores": (options.stores, defaults.stores),
        "seed": (options.seed, None),
    }
    return " ".join(f"--{name} {value}" for name, (value, default) in given.items() if value != default)


def _as_data(options: ChaosOptions, results: list[ModeResult], work: _Place) -> dict[str, object]:
    return {
        "passed": all(result.passed for result in results),
        "seed": options.seed,
        "kept": str(work.directory) if work.kept else None,
        "modes": [_mode_data(options, result) for result in results],
    }


def _mode_data(options: ChaosOptions, result: ModeResult) -> dict[str, object]:
    return {
        "mode": result.mode,
        "promise": PROMISES[result.mode].text,
        "passed": result.passed,
        "interrupted": result.interrupted,
        "seconds": round(result.seconds, 1),
        **result.counts._asdict(),
        "claims": [line._asdict() for line in result.lines],
        "rounds": [
            {**look._asdict(), "lines": [line._asdict() for line in look.lines if not line.holds]}
            for look in result.rounds
        ],
        "schedule": [[strike._asdict() for strike in strikes] for strikes in options.schedule(result.mode)],
    }
