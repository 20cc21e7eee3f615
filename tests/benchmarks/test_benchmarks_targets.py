"""`make bench ARGS="blocks web"`, as small as it gets: each target has its row. How good the figures are is no test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.access import LEAST_RATIO
from benchmarks.engine_servers import SERVERS

ROOT = Path(__file__).parents[2]

MAY_BE_NONE = ("added", "more", "failed")

pytestmark = [pytest.mark.full, pytest.mark.postgresql]


def measured(*sections: str, seconds: float = 280) -> dict[str, dict[str, Any]]:
    """The figures by their names; `python -m benchmarks` has proven by then that both halves are there."""
    command = [sys.executable, "-m", "benchmarks", *sections, "--scale", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=seconds)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert all(one["value"] > 0 for one in figures if not any(word in one["name"] for word in MAY_BE_NONE))
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


def test_a_web_service_is_measured_through_an_outage_and_a_hang() -> None:
    figures = measured("outage")
    for name in ("broker killed", "broker hangs"):
        assert figures[f"{name}: without messages, failed"]["target"] == 0.0
        assert figures[f"{name}: longest transaction"]["unit"] == "s"
        assert figures[f"{name}: without messages, 99 %"]["unit"] == "ms"


def test_a_signature_has_a_target() -> None:
    figures = measured("signing")
    signed = figures["sign a call, 1 KiB"]
    assert (signed["unit"], signed["at_most"], signed["target"]) == ("us", True, 5.0)
    assert figures["verify it, replays told"]["value"] > 0


def test_access_control_has_a_target() -> None:
    figures = measured("access")
    assert figures["access: rate with a token / without"]["target"] == LEAST_RATIO
    for way in ("off", "token"):
        assert figures[f"access: {way}, 1,000 in flight"]["unit"] == "tx/s"


@pytest.mark.mariadb
def test_a_takeover_has_a_target_on_every_shared_engine() -> None:
    figures = measured("takeover")
    assert takeovers(figures) == set(SERVERS)


@pytest.mark.mariadb
@pytest.mark.timeout(600)
def test_one_command_measures_the_engines_from_the_store_to_the_takeover() -> None:
    figures = measured("engines", seconds=580)
    assert takeovers(figures) == set(SERVERS)
    for name in ("RocksDB", *SERVERS):
        for group in (1, 64, 1_000):
            assert figures[f"{name}: prepare + commit in groups of {group:,}"]["ratio_of"] == "fdatasyncs/s"
    for name in SERVERS:
        assert figures[f"{name}, 2 broker(s) on 2 store(s): prepare + commit"]["ratio_of"] == "one on one"


def takeovers(figures: dict[str, dict[str, Any]]) -> set[str]:
    """The engines on which one was measured, beside the time that it may take."""
    limits = {name: (one["unit"], one["at_most"], one["target"]) for name, one in figures.items() if "taken" in name}
    assert set(limits.values()) == {("s", True, 2.0)}
    return {name.partition(":")[0] for name in limits}
