"""Runs `tallystick` as a user does: a process of its own, without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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
    done = subprocess.run(
        command(*given, *arguments),
        input=stdin,
        capture_output=True,
        env=environment(**variables),
        cwd=cwd,
        timeout=SECONDS,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def one_line(text: str) -> str:
    """The text, which must be a single line that says who speaks."""
    assert text.startswith("tallystick: "), text
    assert text.count("\n") == 1, text
    return text
