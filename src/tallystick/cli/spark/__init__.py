"""`tallystick spark <job>`: the jobs that run on Spark."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

from tallystick.core.errors import ConfigError

# The modules import Spark only when their job runs: it takes a second, and may not be installed.
JOBS = {
    "checkback": "tallystick.cli.spark.checkback",
    "reconcile": "tallystick.cli.spark.reconcile",
    "archive": "tallystick.cli.spark.archive",
    "replay": "tallystick.cli.spark.replay",
    "report": "tallystick.cli.spark.report",
}
NEEDED = ("pyspark", "pyarrow", "jinja2")


class _Jobs(TyperGroup):
    """The jobs; where the extra is missing, a job says so in one line instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in NEEDED:
                raise
            raise ConfigError(
                f"{missing} is not installed; the jobs need it: pip install 'tallystick[spark]'"
            ) from None


def add(app: typer.Typer) -> None:
    jobs = typer.Typer(
        name="spark",
        help="Jobs on Spark: check-back in bulk, reconciliation, archive, replay, report.",
        no_args_is_help=True,
        rich_markup_mode=None,
        cls=_Jobs,
    )
    for module in JOBS.values():
        importlib.import_module(module).add(jobs)
    app.add_typer(jobs)
