"""Every block of README and docs runs, as a reader would type it in."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT, Page, all_pages
from doc_session import differs

from brokers import BrokerProcess, running_broker

ADDRESS = "http://127.0.0.1:7440"
PAGE_SECONDS = 240

RUNNING = [page for page in all_pages() if page.runs]


def _marks(page: Page) -> list[pytest.MarkDecorator]:
    return [getattr(pytest.mark, page.settings["needs"])] if "needs" in page.settings else []


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name, marks=_marks(page)) for page in RUNNING])
def test_every_block_of_the_page_runs(page: Page, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with _broker_for(page, request, tmp_path) as broker:
        done = _run(page, broker, _environment(page, broker, request), tmp_path)
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"


def test_a_block_that_fails_fails_its_page(tmp_path: Path) -> None:
    """The negative control, for each kind of block."""
    for block in (
        {"language": "python", "text": "assert 1 + 1 == 3\n"},
        {"language": "sh", "text": "tallystick no-such-command\n"},
        {"language": "text", "text": "something else\n", "output": True},
    ):
        given = {"page": "page.md", "blocks": [{"line": 7, "file": None, "output": False, **block}]}
        done = _session(given, dict(os.environ), tmp_path)
        assert done.returncode == 1
        assert "page.md:7" in done.stderr


def test_an_output_is_compared_by_its_text() -> None:
    assert not differs("a ... c\n", "a b c\n")
    assert differs("a ... c\n", "a b d\n")


def test_no_page_keeps_a_python_block_from_being_run() -> None:
    kept = [f"{page.name}:{block.line}" for page in all_pages() for block in page.blocks if _is_kept_python(block)]
    assert kept == []


def _is_kept_python(block: Any) -> bool:
    return block.language in ("python", "py", "pycon") and not block.runs


@contextlib.contextmanager
def _broker_for(page: Page, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """The shared broker; or one with the settings that the page asks for; or none, if the page starts its own."""
    asked = page.settings.get("broker")
    if asked is None:
        yield request.getfixturevalue("broker")
        return
    settings = dict(pair.split("=", 1) for pair in asked.split()) if asked != "its own" else {}
    with running_broker(tmp_path, start=asked != "its own", **settings) as broker:
        yield broker


def _environment(page: Page, broker: BrokerProcess, request: pytest.FixtureRequest) -> dict[str, str]:
    known = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TALLYSTICK_URL": broker.url,
        # For a page that starts its own broker: where the others are told to look for it.
        "TALLYSTICK_PORT": str(broker.port),
        "TALLYSTICK_GRPC_PORT": str(broker.grpc_port),
        "TALLYSTICK_MIN_FREE_BYTES": "0",
        "TALLYSTICK_ALLOW_WEAK_DURABILITY": "true",  # the servers of tests do not wait for their disk
        "EXAMPLES": str(ROOT / "examples"),
    }
    if page.settings.get("needs") == "postgresql":
        known["DATABASE_URL"] = request.getfixturevalue("database_url")
    return known


def _run(
    page: Page, broker: BrokerProcess, environment: dict[str, str], directory: Path
) -> subprocess.CompletedProcess[str]:
    blocks = [
        {
            "language": block.language,
            "text": _addressed(block.text, broker),
            "line": block.line,
            "file": block.file,
            "output": block.is_output,
        }
        for block in page.blocks
        if block.runs
    ]
    return _session({"page": page.name, "blocks": blocks}, environment, directory)


def _addressed(text: str, broker: BrokerProcess) -> str:
    """The default address is that of a broker which may well run on this machine: tests leave it alone."""
    return re.sub(r"127\.0\.0\.1:7440\b", f"127.0.0.1:{broker.port}", text)


def _session(given: Any, environment: dict[str, str], directory: Path) -> subprocess.CompletedProcess[str]:
    program = Path(__file__).with_name("doc_session.py")
    return subprocess.run(
        [sys.executable, program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment,
        timeout=PAGE_SECONDS,
    )
