"""Who is alive: by the watcher's own clock, whatever anybody else's says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallystick.broker.cluster.watch import FORGET_AFTER_LEASES, RECONNECT_MS, Watch
from tallystick.store.shared.registry import Member

LEASE = 3_000
TICK = 250


def member(name: str, beat: int) -> Member:
    return Member(name, name, f"http://{name}", beat=beat)


class Watcher:
    """Looks at a given moment, without delay."""

    def __init__(self) -> None:
        self.watch = Watch(LEASE)
        self.now = 0

    def look(self, ms: int = TICK, /, **beats: int) -> None:
        self.now += ms
        self.watch.saw([member(name, beat) for name, beat in beats.items()], self.now, self.now)

    def look_for(self, ms: int, **beats: int) -> None:
        for _ in range(ms // TICK):
            self.look(**beats)


def test_a_member_lives_as_long_as_its_beat_grows() -> None:
    watcher = Watcher()
    for beat in range(100):
        watcher.look(other=beat)
        assert watcher.watch.alive("other")


def test_a_beat_that_stands_still_for_a_lease_is_a_death() -> None:
    watcher = Watcher()
    watcher.look(other=7)
    watcher.look_for(LEASE - TICK, other=7)
    assert watcher.watch.alive("other")
    watcher.look(other=7)
    assert not watcher.watch.alive("other")


def test_whoever_was_dead_lives_again_with_the_next_beat() -> None:
    watcher = Watcher()
    watcher.look(other=7)
    watcher.look_for(2 * LEASE, other=7)
    assert not watcher.watch.alive("other")
    watcher.look(other=8)
    assert watcher.watch.alive("other")


def test_a_beat_that_falls_is_a_sign_of_life_too() -> None:
    """It only says that something has changed; nobody's counter is compared with anything but itself."""
    watcher = Watcher()
    watcher.look(other=7)
    watcher.look_for(LEASE - TICK, other=7)
    watcher.look(other=1)
    watcher.look_for(LEASE - TICK, other=1)
    assert watcher.watch.alive("other")


def test_nobody_who_was_not_seen_is_alive() -> None:
    watcher = Watcher()
    assert not watcher.watch.alive("other")
    watcher.look(other=1)
    watcher.look(third=1)
    assert not watcher.watch.alive("other")


def test_a_watcher_that_slept_kills_nobody() -> None:
    """It was paused, or the engine was away for all: the others had no chance to be seen."""
    watcher = Watcher()
    watcher.look(other=7)
    watcher.look(3_600_000, other=7)
    assert watcher.watch.alive("other")
    watcher.look_for(RECONNECT_MS - 2 * TICK, other=7)
    assert watcher.watch.alive("other")
    watcher.look_for(2 * TICK, other=7)
    assert not watcher.watch.alive("other")


def test_a_member_that_connects_again_a_little_later_is_alive_and_then_judged_as_always() -> None:
    """The engine was away for all. This watcher had its connection first."""
    watcher = Watcher()
    watcher.look(other=7)
    watcher.look(20_000, other=7)
    watcher.look_for(LEASE + 2_000, other=7)
    assert watcher.watch.alive("other")
    watcher.look(other=8)
    watcher.look_for(LEASE - TICK, other=8)
    assert watcher.watch.alive("other")
    watcher.look(other=8)
    assert not watcher.watch.alive("other")


def test_a_gap_makes_no_dead_member_alive() -> None:
    watcher = Watcher()
    watcher.look(other=7)
    watcher.look_for(LEASE, other=7)
    watcher.look(20_000, other=7)
    assert not watcher.watch.alive("other")


def test_a_slow_answer_does_not_make_the_silence_longer() -> None:
    """What it shows may be as old as the question."""
    watch = Watch(LEASE)
    watch.saw([member("other", 7)], 0, 900)
    for asked in range(1_000, 3_900, 250):  # each answer comes at once
        watch.saw([member("other", 7)], asked, asked)
        assert watch.alive("other")
    watch.saw([member("other", 7)], 3_900, 60_000)
    assert not watch.alive("other")


def test_rows_of_the_long_dead_can_go() -> None:
    watcher = Watcher()
    watcher.look(other=7, third=0)
    watcher.look_for(LEASE * (FORGET_AFTER_LEASES - 1), other=7, third=0)
    watcher.look(other=7, third=1)
    assert watcher.watch.long_dead() == []
    watcher.look_for(LEASE, other=7, third=1)
    assert watcher.watch.long_dead() == ["other"]


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 2_000), st.booleans()), max_size=60))
def test_no_death_without_a_whole_lease_of_watched_silence(looks: list[tuple[int, int, bool]]) -> None:
    watch, now, beat = Watch(LEASE), 0, 0
    silent_since: int | None = None  # the moment of the first answer that showed the beat
    for pause, delay, beats in looks:
        beat += beats
        asked = now + pause
        now = asked + delay
        watch.saw([member("other", beat)], asked, now)
        if beats or silent_since is None:
            silent_since = now
        if not watch.alive("other"):
            assert asked - silent_since >= LEASE
