"""Running the examples of several programs as a user does, and getting at their modules."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"

Part = Callable[[str], ModuleType]


def run(program: str, directory: Path, *options: str, seconds: float = 110) -> tuple[int, dict[str, Any]]:
    """Exit code, and what it says to programs."""
    done = subprocess.run(
        [sys.executable, EXAMPLES.parent / program, "--json", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
        timeout=seconds,
    )
    assert done.stdout, done.stderr
    return done.returncode, {**json.loads(done.stdout), "said": done.stderr}


def broken(result: dict[str, Any]) -> list[str]:
    """The claims that do not hold."""
    return [line["claim"] for line in result["claims"] if not line["holds"]]


@contextmanager
def modules_of(example: str) -> Iterator[Part]:
    """The modules of an example by name; those of another one, which may have the same names, do not get in the way."""
    place = EXAMPLES / example
    names = {path.stem for path in place.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(place))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(place))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(others)
