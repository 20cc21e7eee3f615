"""The transfer of the two-phase message: everything that can go wrong, walked through, and the money is right."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_support import EXAMPLES, Part, broken, modules_of, run

RUN = "examples/cross_bank_transfer/run.py"
long = [pytest.mark.full, pytest.mark.fault]


class TestWhole:
    pytestmark = long

    def test_the_money_is_right_whatever_goes_wrong(self, tmp_path: Path) -> None:
        code, result = run(RUN, tmp_path)
        assert (code, broken(result)) == (0, []), result["said"]
        assert [_moved(line) for line in result["claims"]] == [30, 30, 30, 60, 90, 120, 150, 180, 210, 240]
        assert result["said"].count("QueryPrepared") >= 3  # two crashes after the commit, one before
        assert result["said"].count("has it already") == 1
        assert list(tmp_path.glob("tallystick-banks-*")) == []  # it cleans up after itself

    @pytest.mark.parametrize(
        ("sabotage", "first"),
        [
            ("no-branch-barrier", "B dies with its commit done and its answer not sent: it is called again"),
            ("always-yes", "A dies before its commit: the database rolls back, the check-back finds out"),
        ],
    )
    def test_what_is_broken_on_purpose_is_noticed(self, sabotage: str, first: str, tmp_path: Path) -> None:
        code, result = run(RUN, tmp_path, f"--sabotage={sabotage}")
        assert code == 1
        assert broken(result) == [first], result["said"]


def _moved(line: dict[str, Any]) -> int:
    return int(line["detail"].rpartition("B has ")[2])


@pytest.fixture
def part() -> Iterator[Part]:
    with modules_of("cross_bank_transfer") as load:
        yield load


def test_the_protocol_needs_nothing_but_the_standard_library() -> None:
    tree = ast.parse((EXAMPLES / "cross_bank_transfer/plain.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == set()


def test_a_picture_has_an_arrow_for_each_request(part: Part) -> None:
    notes = [
        {"kind": "a->broker", "text": "prepare"},
        {"kind": "a", "text": "commit"},
        {"kind": "broker->b", "text": "TransIn 30"},
        {"kind": "b", "text": "+30"},
        {"kind": "b->broker", "text": "SUCCESS"},
    ]
    drawn = part("picture").draw(notes).splitlines()
    assert [line.strip("│ ") for line in drawn[1:]] == [
        "────────── prepare ──────────▶",
        "commit",
        "──────── TransIn 30 ─────────▶",
        "+30",
        "◀────────── SUCCESS ──────────",
    ]
