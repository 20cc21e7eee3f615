"""The whole demo, small: it proves what it should, and sabotage makes the proof fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.fault
on_spark = [pytest.mark.full, pytest.mark.spark]


def demo(directory: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run it as a user does; exit code and what it says to programs."""
    given = ["--transfers", "300", "--kills", "12", "--seed", "42", "--json", *options]
    done = subprocess.run(
        [sys.executable, "-m", "tallystick", "demo", *given],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def failed(result: dict[str, Any]) -> set[str]:
    return {line["claim"] for line in result["claims"] if not line["holds"]}


@pytest.mark.parametrize("judge", ["hand", pytest.param("spark", marks=on_spark)])
def test_every_transfer_is_credited_exactly_once_whoever_is_killed(tmp_path: Path, judge: str) -> None:
    code, result = demo(tmp_path, "--spark" if judge == "spark" else "--no-spark")
    assert (code, result["passed"], failed(result)) == (0, True, set())
    assert result["kills"] == {"producer": 6, "consumer": 4, "broker": 2}
    assert result["committed"] == result["credited"]
    assert result["judge"] == judge
    assert (f"{result['committed']:,} committed at A" in result["remark"]) is (judge == "spark")
    assert result["committed"] + result["refused"] == result["transfers"] == 300
    assert list(tmp_path.iterdir()) == []  # it cleans up after itself


@pytest.mark.full
@pytest.mark.spark
def test_without_the_barrier_the_proof_fails(tmp_path: Path) -> None:
    code, result = demo(tmp_path, "--sabotage", "barrier")
    assert (code, result["passed"]) == (1, False)
    ghosts = "reconcile: nothing was sent or credited that was not committed"
    assert {ghosts, "the money adds up"} <= failed(result)
    assert result["judge"] == "spark"


@pytest.mark.full
@pytest.mark.spark
def test_without_the_inbox_the_proof_fails(tmp_path: Path) -> None:
    code, result = demo(tmp_path, "--sabotage", "inbox")
    assert (code, result["passed"]) == (1, False)
    assert {"reconcile: nothing is there twice", "the money adds up"} <= failed(result)
    assert "reconcile: nothing is lost" not in failed(result)


@pytest.mark.full
def test_a_run_that_cannot_finish_in_time_fails_and_keeps_its_databases(tmp_path: Path) -> None:
    code, result = demo(tmp_path, "--transfers", "20000", "--seconds", "3", "--no-spark")
    assert (code, result["judge"], "every transfer was tried" in failed(result)) == (1, "hand", True)
    (kept,) = tmp_path.iterdir()
    assert {"bank-a.db", "bank-b.db", "broker"} <= {path.name for path in kept.iterdir()}


@pytest.mark.full
def test_a_judge_that_breaks_leaves_a_sentence_the_verdict_by_hand_and_everything_it_had(tmp_path: Path) -> None:
    """A Java that ends at once: found, and of no use."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\ncase "$*" in *-version*) echo \'openjdk version "21.0.1"\' >&2; exit 0;; esac\nexit 3\n'
    )
    java.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tallystick", "demo", "--transfers", "30", "--kills", "0", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(work), "JAVA_HOME": str(tmp_path / "java")},
    )
    result = json.loads(done.stdout)
    assert (done.returncode, result["passed"], result["judge"]) == (1, True, "hand")
    (kept,) = work.iterdir()
    said = done.stderr.splitlines()[-1]
    assert said.startswith("tallystick: the judge on Spark failed")
    assert f"{kept}/reconcile.log" in said
    assert "--no-spark" in said
    assert "Traceback" not in done.stderr
    assert {"bank-a.db", "bank-b.db", "broker", "reconcile.log"} <= {path.name for path in kept.iterdir()}
