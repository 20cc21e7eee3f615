"""`make bench ARGS="blocks web"`, as small as it gets: each target has its row. How good the figures are is no test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.full, pytest.mark.postgresql]


def measured(*sections: str) -> dict[str, dict[str, Any]]:
    """The figures by their names; `python -m benchmarks` has proven by then that both halves are there."""
    command = [sys.executable, "-m", "benchmarks", *sections, "--scale", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert all(one["value"] > 0 for one in figures if "added" not in one["name"])
    return {one["name"]: one for one in figures}


def ratio_targets(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {name: one["ratio_target"] for name, one in figures.items() if one["ratio_target"] is not None}


def test_blocks_are_measured_beside_the_business_alone() -> None:
    figures = measured("blocks")
    assert ratio_targets(figures) == {
        "SQLite, 1 thread: block, check-back": 0.25,
        "SQLite, 1 thread: block, outbox": 0.4,
        "PostgreSQL, 1 thread: block, check-back": 0.45,
        "PostgreSQL, 8 threads: block, check-back": 0.45,
        "PostgreSQL, 32 threads: block, check-back": 0.6,
    }
    for name in ratio_targets(figures):
        assert figures[f"{name}, wait=True"]["ratio"] > 0
        assert figures[name]["ratio_of"] == "business alone"
    added = figures["PostgreSQL, 1 thread: block, check-back, time added"]
    assert (added["unit"], added["at_most"], added["target"]) == ("ms", True, 1.0)
    for threads in ("1 thread", "8 threads", "32 threads"):
        place = f"PostgreSQL, {threads}: block, check-back"
        assert figures[f"{place}, median"]["unit"] == "ms"
        assert figures[f"{place}, operations a request"]["value"] > 0


def test_web_services_are_measured_with_and_without_messages() -> None:
    figures = measured("web")
    assert list(ratio_targets(figures).values()) == [0.6, 0.6]
    for name in ratio_targets(figures):
        assert figures[name]["ratio_of"] == "without messages"
        assert figures[name]["ratio"] > 0


def test_a_signature_has_a_target() -> None:
    figures = measured("signing")
    signed = figures["sign a call, 1 KiB"]
    assert (signed["unit"], signed["at_most"], signed["target"]) == ("us", True, 5.0)
    assert figures["verify it, replays told"]["value"] > 0
