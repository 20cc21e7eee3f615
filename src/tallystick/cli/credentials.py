"""The options by which a command says who asks, and whom it believes. Every command that takes an address has them.

There is none for a token itself: the options of a process can be read by everybody on its machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypedDict, cast

import typer

from tallystick.credentials.credentials import Credentials, find_credentials


class CredentialFiles(TypedDict, total=False):
    """Under the names by which `Client` takes them."""

    token_file: str
    ca: str
    cert: str
    key: str


_given: dict[str, str] = {}


def with_credentials(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to all commands below that have `--url`. Given after a command's name, they win."""
    _given.clear()
    _add(command)
    return command


def _add(command: Any) -> None:
    if any(parameter.name == "url" for parameter in command.params):
        command.params.extend(_options())
    for below in getattr(command, "commands", {}).values():
        _add(below)


def _options() -> list[Any]:
    """As Typer makes them of a command that has nothing else."""
    holder = typer.Typer(add_completion=False)
    holder.command()(_named)
    return [parameter for parameter in typer.main.get_command(holder).params if parameter.name != "help"]


def _keep(name: str) -> Callable[[str], None]:
    def keep(value: str) -> None:
        if value:
            _given[name] = value

    return keep


def _option(flag: str, name: str, text: str) -> Any:
    return typer.Option(flag, metavar="PATH", callback=_keep(name), expose_value=False, show_default=False, help=text)


_TOKEN = "File with the token to show, read again when it has changed. Or TALLYSTICK_TOKEN_FILE, or TALLYSTICK_TOKEN."  # noqa: S105
_CA = "CA to believe of brokers at https, instead of the system's (PEM). Or TALLYSTICK_CA_FILE."
_CERT = "Client certificate to show (PEM). Or TALLYSTICK_CERT_FILE."
_KEY = "Its key, if that is in a file of its own (PEM). Or TALLYSTICK_KEY_FILE."


def _named(
    token_file: Annotated[str, _option("--token-file", "token_file", _TOKEN)] = "",
    ca_file: Annotated[str, _option("--ca-file", "ca", _CA)] = "",
    cert_file: Annotated[str, _option("--cert-file", "cert", _CERT)] = "",
    key_file: Annotated[str, _option("--key-file", "key", _KEY)] = "",
) -> None:
    """Never called: its options are what counts."""


def given_files() -> CredentialFiles:
    return cast("CredentialFiles", _given)


def given_credentials() -> Credentials:
    """Those of the command that runs, or else of the environment."""
    return find_credentials(**given_files())
