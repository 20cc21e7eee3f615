"""`tallystick keys`: the keys that a broker signs its calls with."""

from __future__ import annotations

import sys

import typer

from tallystick.signing_keys import new_key_line

keys = typer.Typer(help="Keys that a broker signs its calls with: new.", no_args_is_help=True, rich_markup_mode=None)


def add(app: typer.Typer) -> None:
    app.add_typer(keys, name="keys")


@keys.callback()
def _keys() -> None:
    """One word for what there is to do with them."""


@keys.command("new", help="Draw a key and print its line, for the file of signing_keys_file; it is kept nowhere else.")
def new() -> None:
    sys.stdout.write(f"{new_key_line()}\n")
