"""The programs that pages of the documentation show, and the wheel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def page_program(page: str, name: str) -> str:
    """The file that a page of the documentation tells its reader to write."""
    text = (ROOT / page).read_text()
    found = re.search(rf"^```\w+ file={re.escape(name)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no {name}"
    return found[1]


def build_wheel(directory: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (path,) = directory.glob("*.whl")
    return path
