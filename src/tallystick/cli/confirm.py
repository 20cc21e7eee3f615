"""Asking before what cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tallystick.core.errors import InvalidRequest

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(deed: str) -> None:
    """Go on only if the user says so; without a terminal nobody can be asked, and `--yes` is wanted."""
    if not sys.stdin.isatty():
        raise InvalidRequest(f"--yes: say it to {deed} without being asked")
    if not typer.confirm(f"{deed[0].upper()}{deed[1:]}?"):
        raise typer.Exit(1)
