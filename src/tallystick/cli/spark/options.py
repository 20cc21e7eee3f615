"""Options and progress that all jobs share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from tallystick.cli.output import note

Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="MASTER",
        envvar="TALLYSTICK_SPARK_MASTER",
        help="Where Spark runs: local[*], spark://host:7077, yarn, k8s://... (default: local[*]).",
        show_default=False,
    ),
]
Jars = Annotated[
    list[str],
    typer.Option("--jars", metavar="FILE", help="A jar that Spark needs, such as a JDBC driver; may be repeated."),
]


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """What to call with each step of a job: one line that changes on a terminal, else a line each; always on stderr."""
    if not sys.stderr.isatty():
        yield note
        return
    from rich.console import Console

    began = time.monotonic()
    with Console(stderr=True, highlight=False, markup=False).status("starting Spark") as line:
        yield lambda text: line.update(f"{time.monotonic() - began:4.0f} s  {text}")
