"""The circuit breaker, on a clock in hand."""

from __future__ import annotations

import random

import pytest

from tallystick.broker.calls.breaker import Breaker
from tallystick.broker.calls.hosts import Host
from tallystick.broker.calls.window import FIRST_WINDOW
from tallystick.core.backoff import Backoff
from tallystick.core.calls import OutgoingCall
from tallystick.store.protocol import CallClaim


def breaker(failures: int = 3, first: int = 1_000, cap: int = 5_000, jitter: float = 0.0) -> Breaker:
    return Breaker(failures, Backoff(first, cap, jitter), random.Random(7))


def opened(failures: int = 3) -> Breaker:
    made = breaker(failures)
    for _ in range(failures):
        made.unreachable(0, probe=False)
    return made


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    made = breaker(3)
    assert [made.unreachable(0, probe=False) for _ in range(3)] == [False, False, True]
    assert made.open
    assert made.failures == 3


def test_an_answer_in_between_begins_the_count_anew() -> None:
    made = breaker(3)
    for _ in range(10):
        made.unreachable(0, probe=False)
        made.unreachable(0, probe=False)
        assert made.answered() is False
    assert not made.open


def test_while_it_is_open_one_probe_is_made_each_interval() -> None:
    made = opened()
    assert not made.may_probe(999)
    assert made.may_probe(1_000)
    made.probe_begun(1_000)
    assert not made.may_probe(1_000)
    assert not made.may_probe(5_999)  # the first one is still under way


def test_a_probe_that_hangs_does_not_hold_up_the_next_one() -> None:
    made = opened()
    made.probe_begun(1_000)
    assert made.may_probe(6_000)


def test_the_interval_grows_with_every_probe_to_its_cap() -> None:
    made = opened()
    now, waits = 0, []
    for _ in range(6):
        waits.append(made.next_probe_at - now)
        now = made.next_probe_at
        assert made.may_probe(now)
        made.probe_begun(now)
        assert made.unreachable(now, probe=True) is False
    assert waits == [1_000, 2_000, 4_000, 5_000, 5_000, 5_000]


def test_intervals_are_jittered() -> None:
    made = breaker(1, jitter=0.2)
    waits = set()
    for _ in range(20):
        made.unreachable(0, probe=False)
        waits.add(made.next_probe_at)
        made.answered()
    assert len(waits) > 5
    assert all(800 <= wait <= 1_000 for wait in waits)


def test_an_answer_closes_it_whoever_brought_it() -> None:
    made = opened()
    assert made.answered() is True
    assert not made.open
    assert made.failures == 0
    assert made.answered() is False


def test_after_it_closed_the_intervals_are_short_again() -> None:
    made = opened()
    for now in (1_000, 3_000, 7_000):
        made.probe_begun(now)
        made.unreachable(now, probe=True)
    made.answered()
    for _ in range(3):
        made.unreachable(50_000, probe=False)
    assert made.next_probe_at == 51_000


def test_calls_that_were_out_when_it_opened_do_not_push_the_probe_back() -> None:
    made = opened()
    for now in range(0, 10_000, 100):
        assert made.unreachable(now, probe=False) is False
    assert made.next_probe_at == 1_000


def test_a_probe_that_told_nothing_is_made_again_after_the_first_interval() -> None:
    made = opened()
    made.probe_begun(1_000)
    made.probe_undone(1_000)
    assert made.open
    assert not made.may_probe(1_999)
    assert made.may_probe(2_000)


def test_a_host_that_no_call_waits_for_is_probed_with_the_next_call() -> None:
    made = opened()
    made.probe_begun(1_000)
    made.probe_spared(1_000)
    assert made.open
    assert made.may_probe(1_000)


# --- what a host may have --------------------------------------------------------------------------------------------


def host(per_host: int = 64) -> Host:
    return Host(1, "http://shop:80", per_host, breaker())


def claims(*gids: str) -> list[CallClaim]:
    return [CallClaim(1, gid, 0, OutgoingCall("http://shop/"), 0, 0) for gid in gids]


def answer(made: Host, now: int = 0) -> bool:
    """A call that begins and is answered."""
    (claim,) = claims("answered")
    number = made.begin(claim, now, probe=False)
    made.end(number)
    return made.answered(claim, number, now)


def test_a_host_begins_with_a_small_share_and_earns_the_rest() -> None:
    made = host()
    assert made.room(0) == FIRST_WINDOW
    for _ in range(500):
        answer(made)
    assert made.room(0) == 128


def test_a_share_is_never_larger_than_the_setting() -> None:
    made = host(per_host=3)
    for _ in range(10):
        answer(made)
    made.queue.extend(claims("a", "b", "c", "d", "e", "f"))
    begun = 0
    while made.may_begin:
        made.queue.popleft()
        made.begin(claims("a")[0], 0, probe=False)
        begun += 1
    assert begun == 3


def test_a_host_that_is_given_up_has_room_for_a_probe_alone() -> None:
    made = host()
    assert [made.unreachable(0, probe=False, broken=False) for _ in range(3)] == [False, False, True]
    assert [made.room(now) for now in (0, 999, 1_000)] == [0, 0, 1]
    assert not made.may_begin
    assert not made.wants_a_look(999)
    assert made.wants_a_look(1_000)


def test_probes_do_not_use_up_a_calls_tries_faster_than_its_own_backoff() -> None:
    made = host()
    (claim,) = claims("a")
    assert [made.counts_as_a_try(claim, now, 4_000) for now in (0, 1_000, 3_999, 4_000, 5_000, 8_000)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("ends", [[], ["a"]])
def test_those_that_waited_for_a_host_are_taken_early_once_each(ends: list[str]) -> None:
    made = host()
    for _ in range(3):
        made.unreachable(0, probe=False, broken=True)
    assert answer(made)
    made.looked(0, claims("a", "b"), None, 1_000)
    made.looked(0, claims("c", "d"), 9_999, 1_000)
    assert made.catching_up
    assert made.more
    # None is left; or one comes back, because it failed again: a loop without a pause would follow.
    made.looked(0, claims(*ends), 9_999, 1_000)
    assert not made.catching_up
    assert not made.more
