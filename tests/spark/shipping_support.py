"""The programs that pages of the documentation show."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def page_program(page: str, name: str) -> str:
    """The file that a page of the documentation tells its reader to write."""
    text = (ROOT / page).read_text()
    found = re.search(rf"^```\w+ file={re.escape(name)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no {name}"
    return found[1]
