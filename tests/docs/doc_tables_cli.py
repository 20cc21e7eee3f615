"""Tables made from the command line, and the errors that only the library raises."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from doc_tables import first_sentence, table
from doc_tables_broker import NOT_ANSWERED

from tallystick.broker.config import Config
from tallystick.cli import command_line
from tallystick.cli.options import EXIT_CODES
from tallystick.core import errors
from tallystick.core.errors import TallystickError


def commands() -> str:
    root = command_line([])
    parts = []
    for path, command in _leaves(root, ()):
        usage = " ".join(["tallystick", *path, *_arguments(command)])
        parts.append(f"### tallystick {' '.join(path)}\n\n`{usage}`\n\n{_sentence(command.help)}\n")
        options = list(_options(command))
        if options:
            parts.append(table(["option", "meaning"], options))
    return "\n".join(parts)


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
        return
    for name in sorted(children):
        yield from _leaves(children[name], (*path, name))


def _arguments(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            yield parameter.metavar or parameter.name.upper()
    yield "[OPTIONS]"


def _options(command: Any) -> Iterator[list[str]]:
    # Those that every command has, and the settings of a broker, are told elsewhere.
    given_once = ("url", "as_json", "token_file", "ca_file", "cert_file", "key_file")
    left_out = (*given_once, *(Config.__struct_fields__ if command.name == "serve" else ()))
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.hidden or parameter.name in left_out:
            continue
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        yield [names, _sentence(parameter.help)]


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def exit_codes() -> str:
    parts = [part.strip().rstrip(".").partition(" ") for part in EXIT_CODES.removeprefix("Exit codes:").split(";")]
    return table(["code", "meaning"], [[f"`{number}`", text] for number, _, text in parts])


def library_errors() -> str:
    import tallystick.barrier
    import tallystick.dtm
    import tallystick.spark

    # All that may have been imported by others in this process as well, so that the page does not depend on them.
    for package in (tallystick.barrier, tallystick.dtm, tallystick.spark):
        for found in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(found.name)
    rows = [
        [
            f"`{kind.__name__}`",
            f"`{home(kind)}`",
            f"`{kind.code}`",
            f"`{kind.__bases__[0].__name__}`",
            first_sentence(kind.__doc__),
        ]
        for kind in sorted(_family(TallystickError), key=lambda kind: kind.__name__)
        if kind in NOT_ANSWERED or (kind.__module__ != errors.__name__ and kind.__module__.startswith("tallystick."))
    ]
    return table(["Python class", "import from", "code", "is a", "meaning"], rows)


HOMES = ("tallystick", "tallystick.errors", "tallystick.barrier", "tallystick.dtm", "tallystick.spark")


def home(kind: type[TallystickError]) -> str:
    """The public module that has it; where none has, the one that defines it."""
    public = (name for name in HOMES if getattr(import_module(name), kind.__name__, None) is kind)
    parents = kind.__module__.split(".")
    packages = (".".join(parents[:length]) for length in range(2, len(parents)))
    nearest = (name for name in packages if getattr(import_module(name), kind.__name__, None) is kind)
    return next(public, next(nearest, kind.__module__))


def _family(root: type[TallystickError]) -> Iterator[type[TallystickError]]:
    for child in root.__subclasses__():
        yield child
        yield from _family(child)
