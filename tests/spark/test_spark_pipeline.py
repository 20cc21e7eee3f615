"""The example pipeline: it proves itself whoever is killed, and what is broken on purpose makes the proof fail."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RUN = Path(__file__).parents[2] / "examples/spark_pipeline/run.py"
SECONDS = 1200  # on a machine that does much else; quiet, it takes a minute
STALLED_SECONDS = 240  # beside others, Spark alone takes one and a half minutes to start

long = [pytest.mark.full, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(SECONDS + 20)]


def run(directory: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run it as a user does; exit code and what it says to programs."""
    done = subprocess.run(
        [sys.executable, RUN, "--json", f"--give-up={STALLED_SECONDS}", "--seed=5", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
        timeout=SECONDS,
    )
    assert done.stdout, done.stderr
    print(done.stdout, done.stderr)  # a failure tells what was missing, and when
    return done.returncode, json.loads(done.stdout)


def claims(result: dict[str, Any], holding: bool) -> list[str]:
    return [line["claim"] for line in result["claims"] if line["holds"] is holding]


class TestWhole:
    pytestmark = long

    def test_the_books_are_the_shops_whoever_is_killed(self, tmp_path: Path) -> None:
        code, result = run(tmp_path, "--kills=5", "--seconds=8")
        assert (code, claims(result, holding=False)) == (0, [])
        assert set(result["kills"]) == {"shop", "spark", "books", "broker"}
        assert sum(result["kills"].values()) == 5
        assert result["orders"] > 100
        assert list(tmp_path.glob("tallystick-pipeline-*")) == []  # it cleans up after itself

    def test_without_the_ledger_and_the_inbox_the_proof_fails(self, tmp_path: Path) -> None:
        code, result = run(
            tmp_path, "--sabotage=ledger", "--sabotage=inbox", "--kills=6", "--seconds=3", "--no-reconcile"
        )
        assert code == 1
        assert result["repeated"] >= 1, "no kill hit Spark between the broker's note and its own"
        assert claims(result, holding=False) == [
            "topic revenue is those orders added up, each window once",
            "every message of topic revenue is booked once, and no other",
            "the books' totals are the shop's",
        ]


# --- the parts, without Spark ----------------------------------------------------------------------------------------


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the example, by name."""
    monkeypatch.syspath_prepend(RUN.parent)
    return importlib.import_module


def right(proof: ModuleType) -> Any:
    """Two products in two windows of a second, all as it should be."""
    apples, bread, more = proof.Order(1, "apples", 40), proof.Order(2, "bread", 320), proof.Order(3, "apples", 80)
    results = [
        proof.Result("g1/0", "apples", 1_000, 1, 40),
        proof.Result("g1/1", "bread", 1_000, 1, 320),
        proof.Result("g2/0", "apples", 2_000, 1, 80),
    ]
    return proof.Evidence(
        sold=[apples, bread, more],
        logged=[(more, 2_000), (apples, 1_000), (bread, 1_999)],
        results=results,
        booked=results[::-1],
        totals={"apples": (2, 120), "bread": (1, 320)},
        window_ms=1_000,
    )


WRONG = [
    ("an order without its message", {"logged": lambda right: right[1:]}, {"orders", "revenue"}),
    ("an order twice in the log", {"logged": lambda right: right + right[:1]}, {"orders", "revenue"}),
    ("an order without its row", {"sold": lambda right: right[1:]}, {"orders", "totals"}),
    ("a result that is missing", {"results": lambda right: right[1:]}, {"revenue", "booked"}),
    (
        "a batch that was sent twice",
        {"results": lambda right: [*right, right[0]._replace(message_id="g9/0")]},
        {"revenue", "booked"},
    ),
    (
        "a result that is wrong",
        {"results": lambda right: [right[0]._replace(cents=41), *right[1:]]},
        {"revenue", "booked"},
    ),
    ("a message that was booked twice", {"booked": lambda right: right + right[:1]}, {"booked"}),
    ("a message that was not booked", {"booked": lambda right: right[1:]}, {"booked"}),
    ("totals that are not the sum", {"totals": lambda right: {**right, "bread": (2, 640)}}, {"totals"}),
    ("a transaction without an outcome", {"pending": lambda right: 1}, {"outcome"}),
    ("a process that ended by itself", {"ended": lambda right: 1}, {"ended"}),
]
CLAIMS = ("orders", "revenue", "booked", "totals", "outcome", "ended", "something")


def failing(proof: ModuleType, evidence: Any) -> set[str]:
    return {name for name, line in zip(CLAIMS, proof.judge(evidence), strict=True) if not line.holds}


def test_the_proof_accepts_what_is_right(part: Any) -> None:
    assert failing(part("proof"), right(part("proof"))) == set()


@pytest.mark.parametrize(("change", "expected"), [pytest.param(*rest, id=name) for name, *rest in WRONG])
def test_the_proof_notices_each_kind_of_damage(change: dict[str, Any], expected: set[str], part: Any) -> None:
    proof = part("proof")
    evidence = right(proof)
    changed = {name: make(getattr(evidence, name)) for name, make in change.items()}
    assert failing(proof, evidence._replace(**changed)) == expected


def test_the_plan_is_the_same_for_a_seed_and_spares_nobody(part: Any) -> None:
    plan = part("kills").plan
    assert plan(8, 30, 1) == plan(8, 30, 1) != plan(8, 30, 2)
    assert Counter(kill.role for kill in plan(8, 30, 1)) == Counter(shop=2, spark=2, books=2, broker=2)
    assert [kill.aimed for kill in plan(8, 30, 1) if kill.role == "spark"] == [True, False]
    assert {kill.role for kill in plan(3, 30, 1, only=("books",))} == {"books"}


def test_what_spark_has_noted_is_read_from_its_checkpoint(part: Any, tmp_path: Path) -> None:
    last_noted = part("kills").last_noted
    assert last_noted(tmp_path) == -1
    (tmp_path / "commits").mkdir()
    for name in ("0", "9", "10", ".11.crc", "11.tmp"):
        (tmp_path / "commits" / name).touch()
    assert last_noted(tmp_path) == 10
