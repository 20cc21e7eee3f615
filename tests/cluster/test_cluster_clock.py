"""The engine's clock, as a broker reckons it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.broker.cluster.clock import EngineClock
from tallystick.core.clock import ManualClock


def test_it_follows_the_engine_whatever_the_machine_says() -> None:
    own = ManualClock()
    clock = EngineClock(own)
    clock.learn(5_000_000, own.elapsed_ms(), own.elapsed_ms())
    own.step(86_400_000)
    assert clock.now_ms() == 5_000_000
    own.advance(1_500)
    assert clock.now_ms() == 5_001_500


def test_without_a_look_there_is_no_time() -> None:
    with pytest.raises(RuntimeError, match="nothing was learnt"):
        EngineClock().now_ms()


def test_it_stands_still_where_it_would_run_backwards() -> None:
    own = ManualClock()
    clock = EngineClock(own)
    clock.learn(5_000_000, own.elapsed_ms(), own.elapsed_ms())
    assert clock.now_ms() == 5_000_000
    clock.learn(4_999_000, own.elapsed_ms(), own.elapsed_ms())
    assert clock.now_ms() == 5_000_000
    own.advance(2_000)
    assert clock.now_ms() == 5_001_000


def test_a_slow_answer_changes_nothing_that_it_does_not_contradict() -> None:
    own = ManualClock()
    clock = EngineClock(own)
    clock.learn(5_000_000, own.elapsed_ms(), own.elapsed_ms())
    asked = own.elapsed_ms()
    own.advance(10_000)
    clock.learn(5_000_100, asked, own.elapsed_ms())  # read soon after the question, answered late
    assert clock.now_ms() == 5_010_000


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 2_000), st.floats(0, 1)), min_size=1))
def test_it_is_never_further_off_than_the_quickest_look_took(looks: list[tuple[int, int, float]]) -> None:
    own, start = ManualClock(), 7_000_000
    clock, begin = EngineClock(own), own.elapsed_ms()
    for pause, trip, share in looks:
        own.advance(pause)
        asked = own.elapsed_ms()
        read_at = asked - begin + int(trip * share)
        own.advance(trip)
        clock.learn(start + read_at, asked, own.elapsed_ms())
    off = clock.now_ms() - (start + own.elapsed_ms() - begin)
    assert abs(off) <= min(trip for _, trip, _ in looks)
