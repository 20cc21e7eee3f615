"""`tallystick doctor`: looks at this machine and at a running broker, and says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from tallystick.cli.doctor.broker import look_at_broker
from tallystick.cli.doctor.environment import look_at_environment
from tallystick.cli.doctor.finding import Finding
from tallystick.cli.options import DEFAULT_URL, Json, Url
from tallystick.cli.output import console, number_of, print_json

_MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "bold red")}


def add(app: typer.Typer) -> None:
    app.command("doctor", help="Check this machine and a running broker; exit code 1 if something is wrong.")(doctor)


def doctor(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", envvar="TALLYSTICK_DATA_DIR", help="Data directory to look at.")
    ] = Path("tallystick-data"),
    environment: Annotated[bool, typer.Option("--environment/--no-environment", help="Look at this machine.")] = True,
    broker: Annotated[bool, typer.Option("--broker/--no-broker", help="Look at the broker at --url.")] = True,
    max_lag: Annotated[int, typer.Option("--max-lag", min=0, help="Unsettled messages a group may have.")] = 10_000,
    max_pending: Annotated[
        int, typer.Option("--max-pending", metavar="SECONDS", min=0, help="Age that a pending transaction may have.")
    ] = 300,
    url: Url = "",
    as_json: Json = False,
) -> None:
    findings: list[Finding] = []
    if environment:
        findings += look_at_environment(data_dir)
    if broker:
        # Nobody named the default address, so a broker that does not run there is not missed.
        findings += look_at_broker(url, url != DEFAULT_URL, max_lag, max_pending)
    _show(findings, as_json)
    if any(one.status == "problem" for one in findings):
        raise typer.Exit(1)


def _show(findings: Iterable[Finding], as_json: bool) -> None:
    found = list(findings)
    problems = sum(one.status == "problem" for one in found)
    if as_json:
        print_json({"ok": problems == 0, "findings": [one._asdict() for one in found]})
        return
    from rich.text import Text

    screen = console()
    for one in found:
        mark, style = _MARKS[one.status]
        screen.print(Text.assemble((f"{mark:>8}", style), f"  {one.subject}: {one.text}"), soft_wrap=True)
        if one.advice:
            screen.print(Text(f"{'':>10}-> {one.advice}", style="dim"), soft_wrap=True)
    verdict = f"{number_of(problems, 'problem')} found" if problems else "nothing is wrong"
    screen.print(Text(verdict, style="bold red" if problems else "bold green"))
