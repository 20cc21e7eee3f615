"""The monkey for minutes: on brokers of their own, and on a cluster whose server it kills as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chaos_support import chaos, failed

from tallystick.chaos.schedule import Sizes, plan

pytestmark = [pytest.mark.fault, pytest.mark.full, pytest.mark.timeout(2_400)]

ROUNDS, SECONDS, SEED = 8, 10.0, 11
NODES = ["--producers", "3", "--consumers", "3", "--brokers", "3", "--rate", "15"]
MINUTES = [*NODES, "--rounds", str(ROUNDS), "--seconds", str(SECONDS), "--seed", str(SEED)]
SHORT = [*NODES, "--rounds", "3", "--seconds", "6", "--seed", "3"]  # which kills brokers in each mode


def held(tmp_path: Path, mode: str, *options: str) -> dict[str, Any]:
    """What is told of a run in which every promise was kept, every message consumed, and every kind of node struck."""
    code, result = chaos(*options, "--mode", mode, "--directory", str(tmp_path / "work"))
    (told,) = result["modes"]
    assert (code, result["passed"], told["mode"], failed(told)) == (0, True, mode, set())
    assert told["committed"] == told["consumed"] > 0
    assert set(told["struck"]) >= {"producer", "broker", "consumer"}
    print(mode, {name: told[name] for name in ("committed", "struck", "takeovers", "longest_unavailable")})
    return told


@pytest.mark.parametrize("mode", ["check-back", "outbox"])
def test_brokers_of_their_own_keep_a_mode_s_promise_for_minutes(tmp_path: Path, mode: str) -> None:
    told = held(tmp_path, mode, *MINUTES)
    assert len(told["rounds"]) == ROUNDS
    wanted = plan(f"{SEED}/{mode}", ROUNDS, SECONDS, Sizes(3, 3, 3))
    assert sum(times for blows in told["struck"].values() for times in blows.values()) == sum(map(len, wanted))


@pytest.mark.postgresql
def test_a_cluster_on_postgresql_keeps_its_promise_for_minutes(tmp_path: Path) -> None:
    told = held(tmp_path, "check-back", *MINUTES, "--store", "postgresql", "--stores", "4")
    assert len(told["rounds"]) == ROUNDS
    assert told["struck"]["engine"]["kill"] > 0
    assert told["takeovers"] > 0


@pytest.mark.postgresql
@pytest.mark.parametrize("mode", ["outbox", "consumer-dedup"])
def test_a_cluster_on_postgresql_keeps_the_promises_of_the_other_modes(tmp_path: Path, mode: str) -> None:
    told = held(tmp_path, mode, *SHORT, "--store", "postgresql", "--stores", "4")
    assert told["struck"]["engine"]["kill"] > 0
    assert told["takeovers"] > 0
