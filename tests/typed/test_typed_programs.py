"""What mypy and pyright make of programs that use the library.

Each program under `samples` is checked in strict mode. A line that ends in `# wrong` must be an error, and no other
line may be; what an expression is, the programs assert with `assert_type`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = sorted(Path(__file__).with_name("samples").glob("*.py"))
SECONDS = 280

Places = set[tuple[str, int]]


def _wrong() -> Places:
    return {
        (path.name, number)
        for path in SAMPLES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith("# wrong")
    }


@pytest.mark.full
def test_mypy_sees_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    done = _run(["mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", *map(str, SAMPLES)])
    assert {
        (Path(found["path"]).name, int(found["line"]))
        for found in re.finditer(r"^(?P<path>[^:\n]+):(?P<line>\d+): error:", done.stdout, re.MULTILINE)
    } == _wrong(), done.stdout + done.stderr


@pytest.mark.full
def test_pyright_sees_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    included = [os.path.relpath(path, tmp_path) for path in SAMPLES]  # it wants no absolute ones
    settings = {"include": included, "extraPaths": [str(ROOT / "src")]}
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps({**settings, "typeCheckingMode": "strict"}))
    done = _run(["pyright", "--outputjson", f"--pythonpath={sys.executable}", f"--project={project}"])
    found = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    told = "\n".join(f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']}" for one in found)
    assert {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found} == _wrong(), told


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=SECONDS
    )
