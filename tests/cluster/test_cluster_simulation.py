"""Three nodes over a fenced engine, in one process under virtual time: whatever goes wrong, the promises are kept; and
where they are broken on purpose, that is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim_bugs import BUGS
from sim_clients import Broken
from sim_schedule import Schedule

QUICK, QUICK_PIECE = 160, 40  # in all and in one test: a few seconds
FULL, FULL_PIECE = 20_000, 100  # four minutes of one processor
MOST_TO_FIND_A_BUG = 1_000


def play(first: int, count: int) -> None:
    for seed in range(first, first + count):
        Schedule(seed).run()


@pytest.mark.parametrize("first", range(0, QUICK, QUICK_PIECE))
def test_the_promises_are_kept_in_every_schedule(first: int) -> None:
    play(first, QUICK_PIECE)


@pytest.mark.full
@pytest.mark.parametrize("first", range(QUICK, QUICK + FULL, FULL_PIECE))
def test_the_promises_are_kept_in_many_more_schedules(first: int) -> None:
    play(first, FULL_PIECE)


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_on_purpose_is_found(bug: str) -> None:
    found = None
    for seed in range(MOST_TO_FIND_A_BUG):
        try:
            Schedule(seed, bug).run()
        except Broken as broken:
            found = str(broken)
            assert f"sim_schedule.py {seed} {bug}" in found
            break
    assert found is not None


def test_a_seed_says_all() -> None:
    """In another process, with other hashes, the same happens at the same moments."""
    command = [sys.executable, str(Path(__file__).with_name("sim_schedule.py")), "7"]
    told = {
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert b"kept" in told.pop()


def test_schedules_are_full_of_takeovers() -> None:
    """Otherwise they would show nothing."""
    takeovers = 0
    for seed in range(10):
        schedule = Schedule(seed)
        schedule.run()
        takeovers += sum(shard.fence.epoch - 2 for shard in schedule.cluster.shards)  # the last claim is the judge's
    assert takeovers >= 10
