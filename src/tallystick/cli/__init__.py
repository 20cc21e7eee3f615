"""The tallystick command line: thin commands over the HTTP API, the broker and the demo.

Each command lives in a module of its own that is imported only when it is named, so that a command starts quickly.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from tallystick.cli.credentials import with_credentials
from tallystick.cli.options import DEFAULT_URL, EXIT_CODES, Globals, RootJson, RootUrl, ShowVersion
from tallystick.cli.standard_output import written_out
from tallystick.core.errors import TallystickError

COMMANDS = {
    "serve": "tallystick.cli.serve",
    "topics": "tallystick.cli.topics",
    "tx": "tallystick.cli.transactions",
    "calls": "tallystick.cli.calls",
    "call-topics": "tallystick.cli.call_topics",
    "groups": "tallystick.cli.groups",
    "send": "tallystick.cli.send",
    "tail": "tallystick.cli.tail",
    "store": "tallystick.cli.store",
    "bench": "tallystick.cli.bench",
    "spark": "tallystick.cli.spark",
    "demo": "tallystick.demo.command",
    "chaos": "tallystick.chaos.command",
    "cluster": "tallystick.cli.cluster",
    "tokens": "tallystick.cli.tokens",
    "audit": "tallystick.cli.audit",
    "keys": "tallystick.cli.keys",
    "doctor": "tallystick.cli.doctor",
}


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application with the commands that the arguments mention, or with all (for help and typing errors)."""
    app = typer.Typer(
        name="tallystick",
        help="Transactional messages: a database transaction and its messages, both or neither.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def root(
        context: typer.Context,
        url: RootUrl = DEFAULT_URL,
        as_json: RootJson = False,
        version: ShowVersion = False,
    ) -> None:
        context.obj = Globals(url, as_json)

    for name in [name for name in COMMANDS if name in arguments] or COMMANDS:
        importlib.import_module(COMMANDS[name]).add(app)
    return app


def command_line(arguments: Sequence[str]) -> Callable[..., Any]:
    """The same as one command, with the options for credentials."""
    return with_credentials(typer.main.get_command(build(arguments)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with written_out():
            result = command_line(given)(args=given, prog_name="tallystick", standalone_mode=True)
    except TallystickError as error:
        from tallystick.cli.failures import report

        return report(error)
    return result if isinstance(result, int) else 0
