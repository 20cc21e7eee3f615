"""Runs `tallystick` as a user does: a process of its own, without a terminal, forked from one that has it imported."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fork_server import ForkServer, lasting_fork_server
from tallystick.cli import COMMANDS, main

SECONDS = 60

Post = Callable[..., Any]
"""Speaks to the broker without the command line."""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def environment(**variables: str) -> dict[str, str]:
    """Ours without the settings of another broker, and a gRPC port of its own for every broker that is started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TALLYSTICK_")}
    return {**kept, "TALLYSTICK_GRPC_PORT": "0", **variables}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tallystick", *arguments]


def tallystick(*arguments: str, url: str = "", stdin: bytes = b"", cwd: Path | None = None, **variables: str) -> Done:
    """Run a command to its end."""
    given = ["--url", url] if url else []
    with tempfile.TemporaryDirectory(prefix="tallystick-") as place:
        streams = {name: Path(place, name) for name in ("stdin", "stdout", "stderr")}
        streams["stdin"].write_bytes(stdin)
        child = _fork_server().start(
            "command_line:run_forked",
            as_program=True,
            arguments=[*given, *arguments],
            directory=cwd,
            environment=environment(**variables),
            **streams,
        )
        code = child.wait(SECONDS)
        return Done(code, streams["stdout"].read_text(), streams["stderr"].read_text())


def run_forked(case: dict[str, Any]) -> None:
    """What `python -m tallystick` does."""
    sys.exit(main(case["arguments"]))


@functools.cache
def _fork_server() -> ForkServer:
    commands = [module for name, module in COMMANDS.items() if name not in ("spark", "demo", "chaos", "bench")]
    return lasting_fork_server("command_line", *commands)


def one_line(text: str) -> str:
    """The text, which must be a single line that says who speaks."""
    assert text.startswith("tallystick: "), text
    assert text.count("\n") == 1, text
    return text
