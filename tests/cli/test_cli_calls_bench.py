"""`tallystick bench calls recovery`, as small as it gets: the figures are there. How good they are is not tested."""

from __future__ import annotations

import pytest
from command_line import tallystick


@pytest.mark.full
def test_calls_and_recovery_are_measured() -> None:
    done = tallystick("bench", "calls", "recovery", "--scale", "0.01", "--json")
    assert done.code == 0, done.err
    disk, *figures = done.json()
    assert [(one["unit"], one["target"], one["at_most"]) for one in figures] == [
        ("tx/s", 3_000, False),
        ("tx/s", 3_000, False),
        ("s", 30.0, True),
    ]
    assert all(one["value"] > 0 for one in figures)
    for one in figures[:2]:
        assert one["ratio"] * disk["value"] > 0.99 * one["value"]
