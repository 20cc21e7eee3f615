"""`tallystick serve`: run a broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tallystick.broker.config import load_config
from tallystick.cli.flags import with_config_flags
from tallystick.core.errors import TallystickError
from tallystick.extras import need

_EPILOG = (
    "Every setting may also come from the environment (TALLYSTICK_CHECK_AFTER=2s) or from a TOML file "
    '(check_after = "2s"). A flag wins over the environment, and that over the file. '
    "Durations: 250ms, 10s, 5m, 12h, 7d."
)


def add(app: typer.Typer) -> None:
    app.command("serve", help="Run a broker.", epilog=_EPILOG)(with_config_flags(serve))


def serve(
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings.")] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", metavar="FILE", help="Write the broker's URL here once it accepts connections."),
    ] = None,
    **flags: Any,
) -> None:
    need("server")
    settings = load_config(config, flags)
    from tallystick.api.server import serve as run  # late: a wrong setting is told without loading the broker

    try:
        run(settings, None if ready_file is None else _writes(ready_file))
    except OSError as error:
        raise TallystickError(f"the broker could not start: {error}") from error


def _writes(path: Path) -> Callable[[str], None]:
    def write(url: str) -> None:
        # Renamed into place: a reader that polls for the file never finds it half written.
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(f"{url}\n")
        temporary.replace(path)

    return write
