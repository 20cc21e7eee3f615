"""`tallystick demo`."""

from __future__ import annotations

import random
from typing import Annotated

import typer
from rich.console import Console

from tallystick.cli.options import Json
from tallystick.cli.output import print_json
from tallystick.demo.run import DemoOptions, DemoResult, Sabotage, run


def add(app: typer.Typer) -> None:
    app.command(
        "demo", help="Transfers between two banks while processes are killed, then the proof that none was lost."
    )(demo)


def demo(
    transfers: Annotated[int, typer.Option("--transfers", min=10, help="Transfers that are tried.")] = 3_000,
    kills: Annotated[int, typer.Option("--kills", min=0, help="Processes that are killed.")] = 30,
    producers: Annotated[int, typer.Option("--producers", min=1, help="Processes of bank A.")] = 2,
    consumers: Annotated[int, typer.Option("--consumers", min=1, help="Processes of bank B.")] = 2,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Give up after this time.")] = 110,
    seed: Annotated[int | None, typer.Option("--seed", help="For the same transfers and kills again.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep databases and logs.")] = False,
    sabotage: Annotated[Sabotage, typer.Option("--sabotage", hidden=True)] = "",
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Let reconcile on Spark be the judge.")] = True,
    as_json: Json = False,
) -> None:
    chosen = random.randrange(1_000_000) if seed is None else seed  # noqa: S311 - shown, so that it can be given again
    options = DemoOptions(transfers, kills, producers, consumers, seconds, chosen, keep, sabotage, spark)
    result = run(options, Console(stderr=as_json, highlight=False))
    if as_json:
        print_json(_as_data(options, result))
    if not result.passed:
        raise typer.Exit(1)


def _as_data(options: DemoOptions, result: DemoResult) -> dict[str, object]:
    return {
        "passed": result.passed,
        "seed": options.seed,
        "seconds": round(result.seconds, 1),
        "transfers": result.last.wished,
        "committed": result.last.debited,
        "refused": result.last.refused,
        "credited": result.last.credited,
        "kills": dict(result.last.kills),
        "checked": result.checks._asdict(),
        "judge": "hand" if result.judgement.found is None else "spark",
        "remark": result.judgement.remark,
        "claims": [line._asdict() for line in result.lines],
    }
