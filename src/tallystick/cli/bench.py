"""`tallystick bench`: hands its arguments to the benchmarks."""

from __future__ import annotations

import importlib

import typer

from tallystick.core.errors import TallystickError

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add(app: typer.Typer) -> None:
    app.command("bench", help="Measure speed; --help says what can be chosen.", context_settings=_PASS_ON)(bench)


def bench(context: typer.Context) -> None:
    try:
        benchmarks = importlib.import_module("tallystick.bench")
    except ModuleNotFoundError as error:
        raise TallystickError(
            f"the benchmarks need {error.name}, which is not installed; run them from a checkout with `make bench`"
        ) from error
    raise typer.Exit(int(benchmarks.main(context.args) or 0))
