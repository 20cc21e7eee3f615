"""`make bench-spark ARGS=kafka`: each target has its row, and where there is no Maven that is said.

How good the figures are is no test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.spark", *arguments, "--scale", "0", "--rounds", "1", "--json"]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=580, env={**os.environ, **environment}
    )


def test_without_maven_the_section_is_left_out_and_says_why(tmp_path: Path) -> None:
    done = bench("kafka", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    assert "kafka is left out" in done.stderr
    assert "no `mvn` on PATH" in done.stderr


def test_a_maven_that_fails_is_quoted(tmp_path: Path) -> None:
    program = tmp_path / "mvn"
    program.write_text("#!/bin/sh\necho '[ERROR] no way out of here'\nexit 1\n")
    program.chmod(0o755)
    done = bench("kafka", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    assert "kafka is left out" in done.stderr
    assert "no way out of here" in done.stderr


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.postgresql
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("mvn") is None, reason="Kafka comes from Maven, and there is no mvn")
def test_each_step_is_measured_beside_kafka() -> None:
    done = bench("kafka")
    assert done.returncode == 0, done.stderr
    if "kafka is left out" in done.stderr:
        pytest.skip(done.stderr.splitlines()[0])  # without the network Maven has only what it has fetched before
    figures = {one["name"]: one for one in json.loads(done.stdout)}
    assert targets(figures) == {
        "batch read, 1,024 B: here / Kafka": 1.2,
        "batch read, 1,024 B: here / Parquet": 0.5,
        "stream, 1,024 B: here / Kafka": 1.0,
        "batch write, 1,024 B: here / Kafka, fsync": 1.0,
        "topic to topic, 1,024 B: here / Kafka, fsync": 1.0,
        "batch read, 1,024 B: here, broker's processor time": 1.2,
        "batch write, 1,024 B: here, broker's processor time": 4.0,
    }
    without = {name for name in figures if "200 B" in name and "here / " in name}
    assert without == {
        "batch read, 200 B: here / Kafka",
        "batch read, 200 B: here / Kafka, larger fetches",
        "batch read, 200 B: here / Parquet",
        "stream, 200 B: here / Kafka",
    }
    assert all(one["value"] > 0 for one in figures.values() if one["unit"] == "rows/s")


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.postgresql
def test_the_broker_s_memory_is_measured_while_ten_read() -> None:
    done = bench("memory")
    assert done.returncode == 0, done.stderr
    before, peak = json.loads(done.stdout)
    assert "10 readers at once" in peak["name"]
    assert 0 < before["value"] <= peak["value"]


def targets(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    wanted = {name: one["ratio_target"] or one["target"] for name, one in figures.items()}
    return {name: target for name, target in wanted.items() if target is not None}
