"""`tallystick bench`: hands its arguments to the benchmarks, which stand in the source, not in the package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import typer

from tallystick.core.errors import TallystickError
from tallystick.extras import need

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_SOURCE = Path(__file__).parents[3]


def add(app: typer.Typer) -> None:
    app.command(
        "bench",
        help="Measure speed, in a checkout of the source; --help says what can be chosen.",
        context_settings=_PASS_ON,
    )(bench)


def bench(context: typer.Context) -> None:
    if not (_SOURCE / "benchmarks" / "command.py").exists():
        raise TallystickError(
            "the benchmarks are not part of the installed package; in a checkout of the source, `make bench` runs them"
        )
    need("server")
    sys.path.insert(0, str(_SOURCE))
    try:
        benchmarks = importlib.import_module("benchmarks.command")
    except ModuleNotFoundError as error:
        raise TallystickError(f"the benchmarks need {error.name}, which is not installed; see `make setup`") from error
    raise typer.Exit(int(benchmarks.main(context.args) or 0))
