"""The monkey's schedule: drawn from its seed alone, and as hard as it says."""

from __future__ import annotations

from collections import Counter

import pytest

from tallystick.chaos.schedule import BLOWS, ENGINE_BLOWS, ROLES, Sizes, plan

SIZES = Sizes(4, 2, 4)


def test_a_seed_repeats_its_schedule_and_another_has_another() -> None:
    assert plan("7/outbox", 8, 5.0, SIZES) == plan("7/outbox", 8, 5.0, SIZES)
    assert plan("7/outbox", 8, 5.0, SIZES) != plan("8/outbox", 8, 5.0, SIZES)
    assert plan("7/outbox", 8, 5.0, SIZES) != plan("7/level-1", 8, 5.0, SIZES)


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    assert plan("1", 9, 5.0, SIZES)[:4] == plan("1", 4, 5.0, SIZES)


def test_rounds_strike_one_node_of_each_kind_then_two_and_so_on_to_all() -> None:
    struck = [Counter(strike.role for strike in strikes) for strikes in plan("3", 5, 5.0, SIZES)]
    assert [one["producer"] for one in struck] == [1, 2, 3, 4, 1]
    assert [one["broker"] for one in struck] == [1, 2, 1, 2, 1]
    assert [one["consumer"] for one in struck] == [1, 2, 3, 4, 1]


@pytest.mark.parametrize("sizes", [Sizes(1, 1, 1), SIZES, Sizes(9, 5, 2)])
def test_no_node_is_struck_twice_in_a_round_and_all_end_within_it(sizes: Sizes) -> None:
    for strikes in plan("5", 20, 10.0, sizes):
        nodes = [(strike.role, strike.number) for strike in strikes]
        assert len(set(nodes)) == len(nodes)
        assert all(strike.number < sizes[ROLES.index(strike.role)] for strike in strikes)
        assert [strike.at for strike in strikes] == sorted(strike.at for strike in strikes)
        assert all(strike.at >= 0 and strike.lasts >= 1.0 and strike.ends <= 10.0 for strike in strikes)


def test_every_blow_meets_every_role() -> None:
    met = {(strike.role, strike.blow) for strikes in plan("2", 200, 5.0, SIZES) for strike in strikes}
    assert met == {(role, blow) for role in ROLES[:3] for blow in BLOWS}


def test_brokers_that_share_an_engine_are_cut_off_from_it_and_it_is_killed_itself() -> None:
    strikes = [strike for round_ in plan("2", 200, 5.0, Sizes(4, 3, 4, engine=1), shared=True) for strike in round_]
    assert {one.blow for one in strikes if one.role == "broker"} == {*BLOWS, *ENGINE_BLOWS}
    assert {one.blow for one in strikes if one.role == "producer"} == set(BLOWS)
    assert Counter(one.blow for one in strikes if one.role == "engine") == {"kill": 200 // 3}
