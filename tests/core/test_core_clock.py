"""Time that is never seen to run backwards, unless the machine's clock was set to another day."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.clock import ManualClock, SystemClock

HOLD = SystemClock.MAX_HOLD_MS


class Machine:
    """A machine's clock that is set by hand."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def time_ns(self) -> int:
        return self.now_ms * 1_000_000 + 999_999


def readings(steps: list[int]) -> list[tuple[int, int]]:
    """What the machine said and what the clock told, after each step."""
    machine, clock = Machine(1_700_000_000_000), SystemClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", machine.time_ns)
        seen = [(machine.now_ms, clock.now_ms())]
        for step in steps:
            machine.now_ms += step
            seen.append((machine.now_ms, clock.now_ms()))
    return seen


def test_it_tells_milliseconds_since_the_epoch() -> None:
    before = time.time()
    told = SystemClock().now_ms()
    assert before - 0.001 <= told / 1000 <= time.time()


def test_a_step_back_of_exactly_the_hold_is_held_and_one_more_is_believed() -> None:
    (start, _), (_, held) = readings([-HOLD])
    assert held == start
    (start, _), (_, believed) = readings([-HOLD - 1])
    assert believed == start - HOLD - 1


def test_small_steps_back_add_up_to_a_large_one_that_is_believed() -> None:
    seen = readings([-HOLD // 2] * 4)
    start = seen[0][1]
    assert [told - start for _, told in seen] == [0, 0, 0, -HOLD // 2 * 3, -HOLD // 2 * 3]


@given(
    st.lists(st.integers(-2 * HOLD, 2 * HOLD) | st.integers(-20, 20) | st.sampled_from([-HOLD, -HOLD - 1]), max_size=40)
)
def test_it_runs_backwards_only_by_jumps_that_are_too_large_to_wait_out(steps: list[int]) -> None:
    seen = readings(steps)
    highest = seen[0][1]
    for machine, told in seen[1:]:
        if told < highest:
            assert highest - machine > HOLD
            assert told == machine
        else:
            assert told == max(highest, machine)
        highest = told


def test_what_has_elapsed_does_not_depend_on_what_the_clock_is_set_to(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.elapsed_ms()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert before <= clock.elapsed_ms() < before + 600_000


def test_a_manual_clock_moves_when_told_to() -> None:
    clock = ManualClock(1_000)
    assert [clock.now_ms(), clock.now_ms()] == [1_000, 1_000]
    began = clock.elapsed_ms()
    clock.advance(250)
    assert (clock.now_ms(), clock.elapsed_ms() - began) == (1_250, 250)
    clock.step(-500)
    assert (clock.now_ms(), clock.elapsed_ms() - began) == (750, 250)
