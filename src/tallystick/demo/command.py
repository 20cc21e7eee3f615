"""`tallystick demo`."""

from __future__ import annotations

import random
from typing import Annotated

import typer
from rich.console import Console

from tallystick.cli.options import Json
from tallystick.cli.output import print_json
from tallystick.core.errors import TallystickError
from tallystick.demo.run import RECONCILE_LOG, DemoOptions, DemoResult, Sabotage, run
from tallystick.extras import need

_SECONDS = "Give the transfers up after this time; by default, when nothing has moved for two minutes."
_SPARK = (
    "Let reconcile on Spark be the judge, however long it takes; Ctrl-C stops it and a smaller one takes its place."
)


def add(app: typer.Typer) -> None:
    app.command(
        "demo", help="Transfers between two banks while processes are killed, then the proof that none was lost."
    )(demo)


def demo(
    transfers: Annotated[int, typer.Option("--transfers", min=10, help="Transfers that are tried.")] = 3_000,
    kills: Annotated[int, typer.Option("--kills", min=0, help="Processes that are killed.")] = 30,
    producers: Annotated[int, typer.Option("--producers", min=1, help="Processes of bank A.")] = 2,
    consumers: Annotated[int, typer.Option("--consumers", min=1, help="Processes of bank B.")] = 2,
    seconds: Annotated[float | None, typer.Option("--seconds", min=1, help=_SECONDS)] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="For the same transfers and kills again.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep databases and logs.")] = False,
    sabotage: Annotated[Sabotage, typer.Option("--sabotage", hidden=True)] = "",
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help=_SPARK)] = True,
    as_json: Json = False,
) -> None:
    need("server")
    chosen = random.randrange(1_000_000) if seed is None else seed  # noqa: S311 - shown, so that it can be given again
    options = DemoOptions(transfers, kills, producers, consumers, seconds, chosen, keep, sabotage, spark)
    result = run(options, Console(stderr=as_json, highlight=False))
    if as_json:
        print_json(_as_data(options, result))
    if result.judgement.failed:
        raise _judge_failed(result)
    if not result.passed:
        raise typer.Exit(1)


def _judge_failed(result: DemoResult) -> TallystickError:
    holds = "holds" if result.passed else "does not hold"
    where = f"Its log is {result.kept / RECONCILE_LOG}, beside the databases. " if result.kept else ""
    return TallystickError(
        f"{result.judgement.remark}. By the smaller judge the proof {holds}. {where}"
        "Look at this machine's Java and Spark with `tallystick doctor`, or run the demo with --no-spark"
    )


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
