"""Options and words that several commands share."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

import tallystick

DEFAULT_URL = "http://127.0.0.1:7440"

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 not found; "
    "4 broker unreachable; 5 conflict with what is already durable; "
    "6 damage was found (spark reconcile); 7 no damage, but something is in doubt or waiting (spark reconcile)."
)


class Globals(NamedTuple):
    """What was given before the command's name."""

    url: str
    as_json: bool


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(tallystick.__version__)
        raise typer.Exit


def _url(context: typer.Context, value: str) -> str:
    return value or str(context.obj.url)


def _json(context: typer.Context, value: bool) -> bool:
    return value or bool(context.obj.as_json)


_URL_HELP = "Address of the broker, or several with commas between them: the first that answers is asked."
_JSON_HELP = "Print JSON for programs instead of tables for people."

RootUrl = Annotated[str, typer.Option("--url", envvar="TALLYSTICK_URL", help=_URL_HELP)]
RootJson = Annotated[bool, typer.Option("--json", help=_JSON_HELP)]
ShowVersion = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
]

# The same two after the command's name; given there, they win.
Url = Annotated[str, typer.Option("--url", callback=_url, help=_URL_HELP, show_default=False)]
Json = Annotated[bool, typer.Option("--json", callback=_json, help=_JSON_HELP)]
