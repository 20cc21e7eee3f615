"""How long to wait before the next try: doubling, capped, jittered."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.backoff import Backoff


class FixedDraw(random.Random):
    """Jitter without chance: 0 shortens nothing, almost 1 shortens as much as there is."""

    def __init__(self, draw: float) -> None:
        super().__init__()
        self._draw = draw

    def random(self) -> float:
        return self._draw


NONE, MOST = FixedDraw(0.0), FixedDraw(1.0 - 2**-53)


def test_waits_double_from_the_first_to_the_cap() -> None:
    backoff = Backoff(first_ms=2_000, cap_ms=30_000)
    assert [backoff.wait_ms(tries, NONE) for tries in range(1, 8)] == [
        2_000,
        4_000,
        8_000,
        16_000,
        30_000,
        30_000,
        30_000,
    ]


@pytest.mark.parametrize("tries", [0, -1, -(10**9)])
def test_before_the_first_try_the_wait_is_the_first_one(tries: int) -> None:
    assert Backoff(first_ms=500, cap_ms=4_000).wait_ms(tries, NONE) == 500


@pytest.mark.parametrize("tries", [41, 64, 10_000, 10**9, 2**200])
def test_a_huge_count_waits_the_cap_and_costs_nothing(tries: int) -> None:
    backoff = Backoff(first_ms=1, cap_ms=300_000)
    assert backoff.wait_ms(tries, NONE) == 300_000
    assert 0.8 * 300_000 <= backoff.wait_ms(tries) <= 300_000


def test_jitter_shortens_by_its_share_at_most() -> None:
    backoff = Backoff(first_ms=10_000, cap_ms=10_000, jitter=0.2)
    assert backoff.wait_ms(1, NONE) == 10_000
    assert backoff.wait_ms(1, MOST) == 8_000


def test_waits_are_spread() -> None:
    backoff = Backoff(first_ms=10_000, cap_ms=10_000)
    drawn = [backoff.wait_ms(1) for _ in range(200)]
    assert len(set(drawn)) > 100
    assert max(drawn) - min(drawn) > 1_000


def test_a_wait_is_never_nothing() -> None:
    assert Backoff(first_ms=0, cap_ms=0).wait_ms(5) == 1
    assert Backoff(first_ms=1, cap_ms=1, jitter=1.0).wait_ms(1, MOST) == 1


@given(
    first=st.integers(0, 10**7),
    cap=st.integers(1, 10**8),
    jitter=st.floats(0, 1),
    tries=st.integers(-5, 10**30),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_every_wait_lies_between_the_jittered_and_the_full_one(
    first: int, cap: int, jitter: float, tries: int, draw: float
) -> None:
    full = first
    for _ in range(min(tries, 60) - 1):
        full = min(cap, full * 2)
    full = min(cap, full)
    wait = Backoff(first, cap, jitter).wait_ms(tries, FixedDraw(draw))
    assert max(1, int(full * (1 - jitter))) <= wait <= max(1, full)
